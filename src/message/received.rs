//! A received message.

use std::sync::Arc;

use bytes::Bytes;

use super::{Envelope, Headers};

/// A message as a handler gets it: the decoded payload, the envelope, and where it came from.
#[derive(Debug, Clone)]
pub struct Message<T> {
    payload: T,
    envelope: Envelope,
    context: Arc<Context>,
}

/// What the delivery says beside payload and envelope.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) queue: String,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) redelivered: bool,
    pub(crate) content_type: Option<String>,
    pub(crate) reply_to: Option<String>,
    pub(crate) body: Bytes,
}

impl<T> Message<T> {
    pub(crate) fn new(payload: T, envelope: Envelope, context: Context) -> Self {
        Self { payload, envelope, context: Arc::new(context) }
    }

    /// Returns the decoded payload.
    #[must_use]
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// Takes the decoded payload out of the message.
    #[must_use]
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// Returns the envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Returns the identity of the message.
    #[must_use]
    pub fn id(&self) -> &str {
        self.envelope.id()
    }

    /// Returns the application's headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.envelope.headers()
    }

    /// Returns which handling attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> i32 {
        self.envelope.attempt()
    }

    /// Returns the queue that delivered the message.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.context.queue
    }

    /// Returns the exchange of the last publish; a retried message shows the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.context.exchange
    }

    /// Returns the routing key of the last publish.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.context.routing_key
    }

    /// Returns whether the broker delivered this message before, to any consumer.
    #[must_use]
    pub fn is_redelivered(&self) -> bool {
        self.context.redelivered
    }

    /// Returns the content type of the body.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.context.content_type.as_deref()
    }

    /// Returns the body as it came, before decoding.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.context.body
    }

    /// Returns the address to reply to: header `acemq-reply-to`, else the AMQP property.
    #[must_use]
    pub fn reply_to(&self) -> Option<&str> {
        self.headers()
            .text("acemq-reply-to")
            .or(self.context.reply_to.as_deref())
            .filter(|address| !address.is_empty())
    }

    /// Replaces the payload and keeps everything else.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Message<U> {
        Message { payload: f(self.payload), envelope: self.envelope, context: self.context }
    }
}
