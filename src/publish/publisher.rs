//! The publisher.

use std::{fmt, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use serde::Serialize;
use tracing::Instrument;

use super::{BatchOutcome, Draft, compose};
use crate::{
    clock::millis,
    connection::{AceMq, Core},
    error::{Error, Result},
    message::{Encoder, Envelope, JsonCodec, Properties},
    telemetry::Sending,
    transport::Outgoing,
};

/// Sends payloads of type `T` to one exchange and routing key.
///
/// Cheap to clone; keep it or make a new one each time, as it reads better.
///
/// # Examples
///
/// ```
/// use acemq::{AceMq, Queue, Topology};
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced { id: u64 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), acemq::Error> {
/// let mq = AceMq::connect("memory://").await?;
/// mq.declare(&Topology::new().queue(Queue::new("orders"))).await?;
/// let orders = mq.publisher::<OrderPlaced>("", "orders");
/// orders.send(&OrderPlaced { id: 7 }).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a publisher sends nothing by itself"]
pub struct Publisher<T> {
    core: Arc<Core>,
    encoder: Arc<dyn Encoder<T>>,
    exchange: String,
    routing_key: String,
    content_type: Option<String>,
    mandatory: bool,
    persistent: bool,
    priority: Option<u8>,
    ttl: Option<Duration>,
    confirm_timeout: Duration,
}

impl AceMq {
    /// Creates a publisher of JSON payloads to an exchange (empty for the default exchange, whose
    /// routing keys are queue names) with a routing key.
    pub fn publisher<T: Serialize>(
        &self,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Publisher<T> {
        self.publisher_with(exchange, routing_key, JsonCodec)
    }

    /// Creates a publisher with an encoder of its own.
    pub fn publisher_with<T>(
        &self,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
        encoder: impl Encoder<T>,
    ) -> Publisher<T> {
        Publisher {
            core: Arc::clone(self.core()),
            encoder: Arc::new(encoder),
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            content_type: None,
            mandatory: true,
            persistent: true,
            priority: None,
            ttl: None,
            confirm_timeout: self.core().options().confirm_timeout,
        }
    }
}

/// Options.
impl<T> Publisher<T> {
    /// Sets the content type on the wire. Default: the encoder's.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Counts a message that no queue takes as sent, for a fan-out to possibly nobody. Default:
    /// such a message is [`Error::Unroutable`].
    pub fn not_mandatory(mut self) -> Self {
        self.mandatory = false;
        self
    }

    /// Lets messages be lost when the broker restarts. Default: they are persistent.
    pub fn transient(mut self) -> Self {
        self.persistent = false;
        self
    }

    /// Sets the priority, for queues that have priorities. Default: none.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Expires a message that waits this long in its queue. Milliseconds. Default: never.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Limits a send from the call to the confirm. Default: the connection's, 30 s.
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }
}

/// Sending.
impl<T: 'static> Publisher<T> {
    /// Publishes a payload with a fresh envelope, and returns the message's id once the broker
    /// has taken responsibility for it.
    ///
    /// `Ok` says nothing about consumers. Dropping the future leaves open whether the message
    /// goes out. While the connection is down the call waits, within the confirm timeout.
    ///
    /// # Errors
    ///
    /// - [`Error::Unroutable`] if no queue takes the message.
    /// - [`Error::Nacked`] if the broker refuses it, for instance because a queue is full.
    /// - [`Error::NotFound`] if the exchange does not exist.
    /// - [`Error::Blocked`] while the broker is short of memory or disk; nothing was sent.
    /// - [`Error::Disconnected`] if there is no connection in time; nothing was sent.
    /// - [`Error::ConfirmTimeout`] and [`Error::Interrupted`] leave open whether the message was
    ///   published: send it again with the same id if consumers are idempotent.
    /// - [`Error::BrokerRefused`] for any other refusal, such as missing permissions.
    /// - [`Error::InvalidOption`] and [`Error::Codec`] before anything is sent; [`Error::Closed`]
    ///   after a close.
    pub async fn send(&self, payload: &T) -> Result<String> {
        self.send_with(payload, Envelope::new()).await
    }

    /// Publishes a payload with an envelope of the caller's.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); also [`Error::InvalidOption`] for a reserved header.
    pub async fn send_with(&self, payload: &T, envelope: Envelope) -> Result<String> {
        let sending = self.watch(&envelope);
        // Composed within the span, which so becomes the cause that the message names.
        let message = sending.span().in_scope(|| self.message(payload, envelope));
        self.publish(sending, message).await
    }

    /// Publishes many payloads, pipelined, each with a fresh envelope.
    ///
    /// Not atomic: each message has a result of its own, in the order of the input.
    pub async fn send_all<'a>(&self, payloads: impl IntoIterator<Item = &'a T>) -> BatchOutcome {
        let window = self.core.options().max_in_flight;
        // Encoded one by one as places become free, so that a long input needs no memory.
        let sends = payloads.into_iter().map(|payload| {
            let envelope = Envelope::new();
            let sending = self.watch(&envelope);
            let message = sending.span().in_scope(|| self.message(payload, envelope));
            self.publish(sending, message)
        });
        BatchOutcome::new(stream::iter(sends).buffered(window).collect().await)
    }

    fn watch(&self, envelope: &Envelope) -> Sending<'_> {
        Sending::start(&self.exchange, &self.routing_key, envelope, self.core.transport())
    }

    /// Publishes what could be composed, and returns its id.
    async fn publish(&self, sending: Sending<'_>, message: Result<Outgoing>) -> Result<String> {
        let publishing = async {
            let message = message?;
            let id = message.properties.message_id.clone().unwrap_or_default();
            self.core.publish(message, self.confirm_timeout).await?;
            Ok(id)
        };
        let result = publishing.instrument(sending.span().clone()).await;
        sending.end(&result);
        result
    }

    fn message(&self, payload: &T, envelope: Envelope) -> Result<Outgoing> {
        let content_type =
            self.content_type.clone().unwrap_or_else(|| self.encoder.content_type().to_owned());
        let body = match self.encoder.encode(payload) {
            Ok(body) => body,
            Err(source) => return Err(Error::Codec { action: "encode", content_type, source }),
        };
        compose(
            &self.core,
            Draft {
                exchange: self.exchange.clone(),
                routing_key: self.routing_key.clone(),
                mandatory: self.mandatory,
                envelope,
                properties: Properties {
                    content_type: Some(content_type),
                    persistent: self.persistent,
                    priority: self.priority,
                    expiration: self.ttl.map(|ttl| millis(ttl).to_string()),
                    ..Properties::default()
                },
                body,
            },
        )
    }
}

impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            encoder: Arc::clone(&self.encoder),
            exchange: self.exchange.clone(),
            routing_key: self.routing_key.clone(),
            content_type: self.content_type.clone(),
            ..*self
        }
    }
}

impl<T> fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .finish_non_exhaustive()
    }
}
