//! For tests of applications: a broker in the test's own process, with faults on command.
//!
//! Code that publishes and consumes is best tested on a broker, not on a mock of one: what goes
//! wrong in production is rarely a call that was not made, but a confirm that did not come, a
//! message that came twice, a connection that went away in between. `memory://name` is a broker
//! with RabbitMQ's rules that every handle of the process reaches by its name, and
//! [`MemoryBroker`] is the test's own access to it: it breaks things, and it looks into queues
//! without taking anything out.
//!
//! It keeps tokio's time. Under `#[tokio::test(start_paused = true)]` an hour's delay is over as
//! soon as nothing else is left to do.
//!
//! Not for: proving that RabbitMQ itself does what the application needs. What the broker here
//! does not model it refuses with [`Error::Unsupported`](crate::Error::Unsupported).
//!
//! # Examples
//!
//! A confirm is lost together with the connection: the message may have been published, and was.
//!
//! ```
//! use acemq::{AceMq, Queue, Topology, testing::MemoryBroker};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), acemq::Error> {
//! let broker = MemoryBroker::of("memory://lost-confirm");
//! let mq = AceMq::connect("memory://lost-confirm").await?;
//! mq.declare(&Topology::new().queue(Queue::new("orders"))).await?;
//!
//! broker.hold_confirms(true);
//! let publisher = mq.publisher::<u32>("", "orders");
//! let (sent, ()) = tokio::join!(publisher.send(&42), async {
//!     while broker.unconfirmed() == 0 {
//!         tokio::task::yield_now().await;
//!     }
//!     broker.disconnect_all("a cable was pulled");
//! });
//!
//! assert!(sent.unwrap_err().may_have_been_published());
//! assert_eq!(broker.messages("orders")[0].body, "42");
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;

use crate::{
    message::Envelope,
    transport::{Transport, memory},
};

/// The test's access to the in-process broker of one name.
///
/// Every call takes effect before it returns. The broker lives as long as a handle or one of these
/// does; give each test a name of its own.
#[derive(Debug, Clone)]
pub struct MemoryBroker {
    broker: memory::MemoryBroker,
    transport: memory::MemoryTransport,
}

/// A message that waits in a queue.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PublishedMessage {
    /// What it is, what caused it, and how often it was tried.
    pub envelope: Envelope,
    /// The payload as bytes.
    pub body: Bytes,
    /// The content type it was published with.
    pub content_type: Option<String>,
}

impl MemoryBroker {
    /// Reaches the broker of this name, `name` or `memory://name`, and starts it if it does not
    /// run yet.
    ///
    /// There is no way to the broker of a plain `memory://`: it belongs to its one handle.
    ///
    /// # Panics
    ///
    /// For an empty name and for a URL of another scheme.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let name = name.strip_prefix("memory://").unwrap_or(name);
        assert!(!name.is_empty(), "a broker needs a name to be reached: `memory://name`");
        assert!(!name.contains("://"), "`{name}` is not the URL of an in-process broker");
        let transport = memory::MemoryTransport::named(name);
        Self { broker: transport.broker(), transport }
    }

    /// Cuts every connection, with a reason that errors and states will name.
    ///
    /// Handles connect again by themselves; see [`refuse_connections`](Self::refuse_connections).
    pub fn disconnect_all(&self, reason: &str) {
        self.broker.disconnect_all(reason);
    }

    /// Refuses new connections, or lets them in again. The ones that exist stay.
    pub fn refuse_connections(&self, refuse: bool) {
        self.broker.refuse_connections(refuse);
    }

    /// Blocks publishing, as a broker does that is short of memory. Consuming goes on.
    pub fn block(&self, reason: &str) {
        self.broker.block(reason);
    }

    /// Lets publishing go on.
    pub fn unblock(&self) {
        self.broker.unblock();
    }

    /// Holds the answers to publishes back, or gives them. The messages go to their queues all
    /// the same.
    pub fn hold_confirms(&self, hold: bool) {
        self.broker.hold_confirms(hold);
    }

    /// Returns how many publishes wait for their answer.
    #[must_use]
    pub fn unconfirmed(&self) -> usize {
        self.broker.unconfirmed()
    }

    /// Restarts the broker: every connection is lost, and what is not durable is gone.
    pub fn restart(&self) {
        self.broker.restart();
    }

    /// Returns the messages of a queue that are ready for delivery, the next one first, and leaves
    /// them there. Nothing if the queue does not exist.
    #[must_use]
    pub fn messages(&self, queue: &str) -> Vec<PublishedMessage> {
        let now_ms = self.transport.clock().now_ms();
        let waiting = self.broker.messages(queue).into_iter();
        waiting
            .map(|(routing_key, properties, body)| PublishedMessage {
                envelope: Envelope::from_properties(&properties, &routing_key, now_ms),
                body,
                content_type: properties.content_type,
            })
            .collect()
    }

    /// Returns how many messages of a queue are with consumers: delivered and not settled.
    #[must_use]
    pub fn unsettled(&self, queue: &str) -> usize {
        self.broker.unsettled(queue)
    }

    /// Returns the names of all queues, sorted.
    #[must_use]
    pub fn queue_names(&self) -> Vec<String> {
        self.broker.queue_names()
    }
}
