//! Queues.

use std::time::Duration;

use super::{check_name, standard};
use crate::{
    clock::millis,
    error::{Error, Result},
    message::{HeaderValue, Headers},
};

/// How a queue stores messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueKind {
    /// Replicated, always durable; counts deliveries. The default.
    Quorum,
    /// One copy on one node; may be exclusive, auto-deleted or transient.
    Classic,
}

/// What a full queue does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// Refuses new messages: the publisher gets [`Error::Nacked`].
    RejectPublish,
    /// Drops the message that would be delivered next, or dead-letters it with the reason
    /// `maxlen`: the oldest one, in a queue with priorities the oldest of the highest. The broker's
    /// default.
    DropHead,
    /// Refuses new messages as [`RejectPublish`](Self::RejectPublish), and dead-letters each one
    /// that it refuses with the reason `maxlen`. Classic queues only.
    RejectPublishDeadLetter,
}

impl Overflow {
    /// Returns RabbitMQ's name of it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RejectPublish => "reject-publish",
            Self::DropHead => "drop-head",
            Self::RejectPublishDeadLetter => "reject-publish-dlx",
        }
    }
}

/// A queue that should exist.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use acemq::Queue;
///
/// let orders = Queue::new("billing.orders");                    // quorum, dead-letters to `.dlq`
/// let replies = Queue::classic("replies").expires(Duration::from_secs(600));
/// # let _ = (orders, replies);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a queue does nothing until its topology is declared"]
pub struct Queue {
    pub(crate) name: String,
    pub(crate) kind: QueueKind,
    pub(crate) durable: bool,
    pub(crate) exclusive: bool,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: Headers,
}

impl Queue {
    /// Describes a durable quorum queue that dead-letters to `{name}.dlq` through `acemq.dlx`
    /// (wire contract, section 6.2). A topology that holds it declares that queue too.
    pub fn new(name: impl Into<String>) -> Self {
        let queue = Self::quorum(name);
        let target = standard::dead_letter_name(&queue.name);
        queue.dead_letter_to(standard::DEAD_LETTER_EXCHANGE, target)
    }

    /// Describes a durable quorum queue without a dead-letter target: what its delivery limit or
    /// a TTL removes is lost.
    pub fn quorum(name: impl Into<String>) -> Self {
        Self::bare(name, QueueKind::Quorum).argument("x-queue-type", "quorum")
    }

    /// Describes a durable classic queue without arguments.
    pub fn classic(name: impl Into<String>) -> Self {
        Self::bare(name, QueueKind::Classic)
    }

    fn bare(name: impl Into<String>, kind: QueueKind) -> Self {
        Self {
            name: name.into(),
            kind,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments: Headers::new(),
        }
    }

    /// Returns the queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the queue vanish at a broker restart. Classic queues only. Default: durable.
    ///
    /// RabbitMQ 4 can be told to refuse one that is not exclusive, and later versions will by
    /// themselves; declaring it is [`Error::BrokerRefused`] there.
    pub fn transient(mut self) -> Self {
        self.durable = false;
        self
    }

    /// Makes the queue belong to this connection and vanish with it. Classic queues only.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Makes the queue vanish with its last consumer. Classic queues only. Default: it stays.
    pub fn auto_delete(mut self) -> Self {
        self.auto_delete = true;
        self
    }

    /// Sends rejected, expired and over-limit messages to an exchange, under another key.
    pub fn dead_letter_to(
        self,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        self.argument("x-dead-letter-exchange", exchange.into())
            .argument("x-dead-letter-routing-key", routing_key.into())
    }

    /// Expires messages that stay this long. Millisecond precision. Default: they stay.
    pub fn message_ttl(self, ttl: Duration) -> Self {
        self.argument("x-message-ttl", milliseconds(ttl))
    }

    /// Deletes the queue when it was unused this long. Millisecond precision. Default: it stays.
    pub fn expires(self, unused: Duration) -> Self {
        self.argument("x-expires", milliseconds(unused))
    }

    /// Limits the number of waiting messages. Default: no limit.
    pub fn max_length(self, messages: u32, overflow: Overflow) -> Self {
        self.argument("x-max-length", i64::from(messages)).argument("x-overflow", overflow.as_str())
    }

    /// Limits the bytes of the bodies that wait. Default: no limit.
    ///
    /// With [`max_length`](Self::max_length) the limit reached first counts; both have one
    /// overflow.
    pub fn max_length_bytes(self, bytes: u64, overflow: Overflow) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.argument("x-max-length-bytes", bytes).argument("x-overflow", overflow.as_str())
    }

    /// Delivers messages of higher priority first, with priorities from 0 to this one. Classic
    /// queues only. Default: every message is alike.
    ///
    /// A message without a priority has 0, one with a higher priority this one. Each priority
    /// costs the broker a queue: a handful is enough.
    pub fn max_priority(self, priority: u8) -> Self {
        self.argument("x-max-priority", i64::from(priority))
    }

    /// Dead-letters a message after this many unsuccessful deliveries. Quorum queues only.
    /// Default: the broker's (no limit before RabbitMQ 4, then 20).
    pub fn delivery_limit(self, deliveries: u32) -> Self {
        self.argument("x-delivery-limit", i64::from(deliveries))
    }

    /// Delivers to one consumer at a time, the others wait. Default: to all in turn.
    pub fn single_active_consumer(self) -> Self {
        self.argument("x-single-active-consumer", true)
    }

    /// Sets an argument that has no method of its own.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.arguments.insert(name, value);
        self
    }

    pub(crate) fn has_standard_dead_letter_target(&self) -> bool {
        self.arguments.text("x-dead-letter-exchange") == Some(standard::DEAD_LETTER_EXCHANGE)
            && self.arguments.text("x-dead-letter-routing-key")
                == Some(&standard::dead_letter_name(&self.name))
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("queue", &self.name)?;
        if self.name.starts_with("amq.") {
            return Err(Error::invalid(
                "queue",
                &self.name,
                "is reserved: `amq.` belongs to the broker",
            ));
        }
        if self.kind == QueueKind::Quorum && (!self.durable || self.exclusive || self.auto_delete) {
            return Err(Error::invalid(
                "queue",
                &self.name,
                "is a quorum queue, which cannot be transient, exclusive or auto-deleted; use `Queue::classic`",
            ));
        }
        // The broker takes the first in silence as `drop-head`.
        for argument in ["x-overflow", "x-max-priority"] {
            let found = self.arguments.get(argument);
            let is_classic = match found {
                Some(HeaderValue::Text(text)) => text == Overflow::RejectPublishDeadLetter.as_str(),
                found => found.is_some(),
            };
            if self.kind == QueueKind::Quorum && is_classic {
                let reason = format!(
                    "is a quorum queue, which cannot have this `{argument}`; use `Queue::classic`"
                );
                return Err(Error::invalid("queue", &self.name, reason));
            }
        }
        Ok(())
    }
}

/// Integer arguments are always written 64 bits wide; a width of its own would read like a
/// difference that is none.
fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(millis(duration)).unwrap_or(i64::MAX)
}
