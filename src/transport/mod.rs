//! The seam between the patterns and a broker: private, object-safe, small.
//!
//! A [`Transport`] dials [`Link`]s. A link is one live connection and nothing more: when it is
//! lost it stays lost, every operation on it fails, and its [`LinkStatus`] says why. Everything
//! that survives a loss (reconnecting, declaring again, subscribing again) is done above this seam,
//! in `connection/` and `consume/`, once for all transports.
//!
//! Contract of every implementation:
//!
//! - [`Link::publish`] completes when the broker has answered: `Ok` means acked and not returned.
//!   Each answer belongs to its own message, however many publishes are in flight.
//! - A delivery is bound to the channel that delivered it. Settling it after that channel is gone
//!   fails and has no effect; it never settles another delivery.
//! - Deliveries that were not settled go back to their queue when the channel closes.
//! - Dropping any future returned here leaks nothing.

#[cfg(all(test, feature = "rabbitmq"))]
mod differential;
pub(crate) mod memory;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use tokio::sync::watch;

use crate::{
    clock::Clock,
    error::{Error, Result},
    message::{HeaderValue, Headers, Properties},
    topology::{Binding, Topology, check_address, check_length},
};

/// A broker that can be dialled.
pub(crate) trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Opens one connection. `name` is shown in the broker's tools. One attempt, no retry; the
    /// caller bounds it in time.
    fn dial(&self, name: &str) -> BoxFuture<'_, Result<Arc<dyn Link>>>;

    /// The clock that this broker's time runs on.
    fn clock(&self) -> Clock;

    /// Where this transport dials, for error texts; never the password.
    fn endpoint(&self) -> String;

    /// What kind of broker this is, for metrics.
    fn name(&self) -> &'static str;
}

/// One live connection.
pub(crate) trait Link: fmt::Debug + Send + Sync + 'static {
    /// Publishes in confirm mode and waits for the broker's answer.
    ///
    /// Errors: `Unroutable` (returned), `Nacked`, `NotFound` (no such exchange), `BrokerRefused`,
    /// `Interrupted` (the channel or connection died first; it may have been published).
    fn publish(&self, message: Outgoing) -> BoxFuture<'static, Result<()>>;

    /// Starts a consumer on a channel of its own.
    ///
    /// Errors: `NotFound` (no such queue), `BrokerRefused`, `Interrupted`.
    fn subscribe(&self, request: Subscribe) -> BoxFuture<'_, Result<Subscription>>;

    /// Opens a channel for taking messages one by one.
    fn pull(&self, queue: &str) -> BoxFuture<'_, Result<Box<dyn Pull>>>;

    /// Declares everything in the topology, in the order exchanges, queues, bindings.
    ///
    /// A difference to what exists is `TopologyMismatch`; nothing after it is declared.
    fn declare(&self, topology: &Topology) -> BoxFuture<'_, Result<()>>;

    /// Looks a queue up; `None` if it does not exist.
    fn inspect(&self, queue: &str) -> BoxFuture<'_, Result<Option<QueueInfo>>>;

    /// Whether an exchange exists.
    fn has_exchange(&self, name: &str) -> BoxFuture<'_, Result<bool>>;

    /// Whether a binding exists; none if the protocol cannot tell.
    fn has_binding(&self, binding: &Binding) -> BoxFuture<'_, Result<Option<bool>>>;

    /// Deletes a queue with its messages; no error if it does not exist.
    fn delete_queue(&self, queue: &str) -> BoxFuture<'_, Result<()>>;

    /// The state of this connection. `Lost` is final.
    fn status(&self) -> watch::Receiver<LinkStatus>;

    /// Closes the connection. Unsettled deliveries go back to their queues.
    fn close(&self) -> BoxFuture<'_, ()>;
}

impl dyn Link {
    /// Declares each object of a topology by itself and returns the refusals, so that one that
    /// no longer fits does not keep the others from being declared. Stops where the link ends.
    pub(crate) async fn declare_each(&self, topology: Topology) -> Vec<(Topology, Error)> {
        let mut refused = Vec::new();
        for part in topology.into_parts() {
            if let Err(error) = self.declare(&part).await {
                let is_lost =
                    matches!(error, Error::Interrupted { .. }) || error.closed_the_connection();
                refused.push((part, error));
                if is_lost {
                    break;
                }
            }
        }
        refused
    }
}

/// The state of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkStatus {
    /// Usable.
    Open,
    /// Usable for everything but publishing: the broker raised an alarm.
    Blocked(String),
    /// Gone for good, with the reason.
    Lost(String),
}

/// A message on its way to the broker.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outgoing {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) mandatory: bool,
    /// `message_id` is always set.
    pub(crate) properties: Properties,
    pub(crate) body: Bytes,
}

/// What to consume, and how.
#[derive(Debug, Clone)]
pub(crate) struct Subscribe {
    pub(crate) queue: String,
    /// Unique, for the broker's tools.
    #[cfg_attr(
        not(feature = "rabbitmq"),
        expect(dead_code, reason = "the in-process broker has no tools to show it")
    )]
    pub(crate) tag: String,
    /// Unsettled deliveries at a time, from 1.
    pub(crate) prefetch: u16,
    pub(crate) exclusive: bool,
    pub(crate) arguments: Headers,
}

/// A running consumer.
pub(crate) struct Subscription {
    /// Yields deliveries. Ends with `None` after [`SubscriptionControl::cancel`]; ends with one
    /// `Err` and `None` when the channel, the connection or the queue is gone.
    pub(crate) deliveries: BoxStream<'static, Result<Delivery>>,
    pub(crate) control: Arc<dyn SubscriptionControl>,
}

/// Stops a consumer. Dropping it without `close` closes the channel in the background.
pub(crate) trait SubscriptionControl: Send + Sync + 'static {
    /// Whether a delivery of this subscription can still be settled: its channel is open.
    fn is_open(&self) -> bool;

    /// Stops the broker from sending. Returns after its answer; what was sent before that is
    /// still in the stream, which then ends.
    fn cancel(&self) -> BoxFuture<'_, Result<()>>;

    /// Closes the channel; unsettled deliveries go back to the queue.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Returns when the broker has read all that was settled before.
    #[cfg(all(test, feature = "rabbitmq"))]
    fn barrier(&self) -> BoxFuture<'_, ()>;
}

/// A channel that takes messages one by one. Dropping it closes the channel in the background.
pub(crate) trait Pull: Send + 'static {
    /// Takes the next message; `None` if the queue is empty now.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Delivery>>>;

    /// Closes the channel; unsettled deliveries go back to the queue.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;

    /// Returns when the broker has read all that was settled before.
    #[cfg(all(test, feature = "rabbitmq"))]
    fn barrier(&self) -> BoxFuture<'_, ()>;
}

/// A delivered message that waits for its settlement.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) redelivered: bool,
    pub(crate) properties: Properties,
    pub(crate) body: Bytes,
    pub(crate) settle: Box<dyn Settle>,
}

/// The one settlement of a delivery.
///
/// An error means that the channel is gone: the broker delivers the message again.
pub(crate) trait Settle: fmt::Debug + Send + Sync {
    /// Whether the delivering channel is still there. If not, the broker delivers the message
    /// again, or has done so already.
    fn is_live(&self) -> bool;

    /// Removes the message from its queue.
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<()>>;

    /// Gives the message back to its queue, or has it dead-lettered by the queue's arguments.
    fn nack(self: Box<Self>, requeue: bool) -> BoxFuture<'static, Result<()>>;
}

/// What the broker says about a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueInfo {
    /// Messages ready for delivery.
    pub(crate) messages: u64,
    pub(crate) consumers: u64,
}

impl Outgoing {
    /// Refuses names that the protocol cannot carry, before anything is sent.
    pub(crate) fn check(&self) -> Result<()> {
        check_address("exchange", &self.exchange)?;
        check_length("routing_key", &self.routing_key)?;
        for (name, text) in self.properties.short_texts() {
            check_length(name, text)?;
        }
        check_headers(&self.properties.headers)
    }

    /// Refuses headers over the frame limit.
    ///
    /// A content header travels in one frame; a larger one makes the broker close the whole
    /// connection, with everything else on it.
    pub(crate) fn check_frame(&self, frame_max: usize) -> Result<()> {
        let header = self.properties.encoded_len();
        if header > frame_max {
            let reason = format!("headers take up to {header} bytes; one frame holds {frame_max}");
            return Err(Error::invalid("headers", self.properties.headers.len(), reason));
        }
        Ok(())
    }
}

fn check_headers(headers: &Headers) -> Result<()> {
    headers.iter().try_for_each(|(name, value)| {
        check_length("header name", name)?;
        check_header_value(name, value)
    })
}

fn check_header_value(name: &str, value: &HeaderValue) -> Result<()> {
    match value {
        HeaderValue::Table(table) => check_headers(table),
        HeaderValue::List(values) => {
            values.iter().try_for_each(|value| check_header_value(name, value))
        }
        // RabbitMQ cannot read one and closes the whole connection, with everything else on it.
        HeaderValue::Double(number) if !number.is_finite() => {
            let reason = format!("is {number}; a broker takes finite numbers only");
            Err(Error::invalid("header", name, reason))
        }
        _ => Ok(()),
    }
}
