//! A received message.

use std::sync::Arc;

use bytes::Bytes;

use super::{Envelope, HeaderValue, Headers, Properties, header};

/// A message as a handler gets it: the decoded payload, the envelope, and where it came from.
///
/// Cloning copies the payload only; the rest is shared.
#[derive(Debug, Clone)]
pub struct Message<T> {
    payload: T,
    received: Arc<Received>,
}

/// A delivery without its payload and without the right to settle it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) queue: String,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) redelivered: bool,
    pub(crate) envelope: Envelope,
    pub(crate) properties: Properties,
    pub(crate) body: Bytes,
    /// Of its handling.
    pub(crate) span: tracing::Span,
}

impl Received {
    /// The address to reply to: header `acemq-reply-to`, else the AMQP property; an empty one is
    /// none (wire contract, section 9.1).
    pub(crate) fn reply_to(&self) -> Option<&str> {
        let present = |address: &&str| !address.is_empty();
        let header = self.envelope.headers().get(header::REPLY_TO).and_then(HeaderValue::as_str);
        header.filter(present).or_else(|| self.properties.reply_to.as_deref().filter(present))
    }
}

impl<T> Message<T> {
    pub(crate) fn new(payload: T, received: Arc<Received>) -> Self {
        Self { payload, received }
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
        &self.received.envelope
    }

    /// Returns the identity of the message.
    #[must_use]
    pub fn id(&self) -> &str {
        self.envelope().id()
    }

    /// Returns the application's headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.envelope().headers()
    }

    /// Returns which handling attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> i32 {
        self.envelope().attempt()
    }

    /// Returns the queue that delivered the message.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.received.queue
    }

    /// Returns the exchange of the last publish; a retried message shows the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.received.exchange
    }

    /// Returns the routing key of the last publish.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.received.routing_key
    }

    /// Returns whether the broker delivered this message before, to any consumer.
    #[must_use]
    pub fn is_redelivered(&self) -> bool {
        self.received.redelivered
    }

    /// Returns the content type of the body.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.received.properties.content_type.as_deref()
    }

    /// Returns the AMQP `correlation_id` property, which this library does not use: senders of
    /// other kinds set it. The business correlation is in the envelope.
    #[must_use]
    pub fn amqp_correlation_id(&self) -> Option<&str> {
        self.received.properties.correlation_id.as_deref()
    }

    /// Returns the body as it came, before decoding.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.received.body
    }

    /// Returns the address to reply to: header `acemq-reply-to`, else the AMQP property; an empty
    /// one is none (wire contract, section 9.1).
    #[must_use]
    pub fn reply_to(&self) -> Option<&str> {
        self.received.reply_to()
    }

    /// Replaces the payload and keeps everything else.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Message<U> {
        Message { payload: f(self.payload), received: self.received }
    }
}
