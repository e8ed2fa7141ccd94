//! The public handle.

use std::sync::Arc;

use futures::stream::{self, Stream};

use super::{ConnectOptions, ConnectionState, Core, Shutdown};
use crate::{error::Result, topology::Topology};

/// A connection to a broker, from which every pattern is reached.
///
/// `AceMq` is cheap to clone and meant to be shared: one per application. It reconnects by itself
/// and restores what ran on it: topology, consumers and everything built on them. Dropping the
/// last clone disconnects in the background; [`close`](Self::close) does it in good order.
///
/// # Examples
///
/// ```
/// use acemq::{AceMq, Queue, Topology};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), acemq::Error> {
/// let mq = AceMq::connect("memory://").await?;
/// mq.declare(&Topology::new().queue(Queue::new("greetings"))).await?;
/// mq.publisher::<String>("", "greetings").send(&"hello".to_owned()).await?;
/// mq.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AceMq {
    core: Arc<Core>,
}

impl AceMq {
    /// Connects with the default options; see [`AceMq::options`].
    ///
    /// The URL picks the transport: `amqp://` or `amqps://` is RabbitMQ; `memory://` is a broker
    /// of its own inside this process, `memory://name` one that handles of this process share.
    ///
    /// # Errors
    ///
    /// As [`ConnectOptions::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self> {
        Self::options(url).connect().await
    }

    /// Starts the options of a connection.
    pub fn options(url: impl Into<String>) -> ConnectOptions {
        ConnectOptions::new(url)
    }

    pub(crate) fn over(core: Arc<Core>) -> Self {
        Self { core }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Declares exchanges, queues and bindings, and again after each reconnect.
    ///
    /// Declaring what exists is no error; nothing is ever deleted or changed. Objects before a
    /// refused one stay declared. Dropping the future leaves open what was declared.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`](crate::Error::InvalidOption) for a name or combination that
    ///   cannot work; nothing is declared.
    /// - [`Error::TopologyMismatch`](crate::Error::TopologyMismatch) if an object exists with
    ///   other properties.
    /// - [`Error::NotFound`](crate::Error::NotFound) if a binding names a missing object.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the transport does not model it.
    /// - [`Error::BrokerRefused`](crate::Error::BrokerRefused) for any other refusal, such as
    ///   missing permissions.
    /// - [`Error::Disconnected`](crate::Error::Disconnected) or
    ///   [`Error::Interrupted`](crate::Error::Interrupted) if there is no answer in time,
    ///   [`Error::Closed`](crate::Error::Closed) after a close.
    pub async fn declare(&self, topology: &Topology) -> Result<()> {
        self.core.declare(topology).await
    }

    /// Returns the number of messages that wait in a queue; none if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`](crate::Error::Disconnected) if there is no connection in time.
    pub async fn queue_length(&self, queue: &str) -> Result<Option<u64>> {
        Ok(self.core.inspect(queue).await?.map(|info| info.messages))
    }

    /// Deletes a queue with its messages; no error if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`](crate::Error::Disconnected) if there is no connection in time.
    pub async fn delete_queue(&self, queue: &str) -> Result<()> {
        self.core.delete_queue(queue).await
    }

    /// Returns the state of the connections.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.core.board().watch().borrow().clone()
    }

    /// Returns the state now and after each change. A slow reader sees the latest, not each.
    pub fn states(&self) -> impl Stream<Item = ConnectionState> + Send + 'static {
        let mut states = self.core.board().watch();
        states.mark_changed();
        stream::unfold(states, |mut states| async move {
            states.changed().await.ok()?;
            let state = states.borrow_and_update().clone();
            Some((state, states))
        })
    }

    /// Closes in good order: stops taking messages, gives back what was not started, waits for
    /// running handlers within [`ConnectOptions::shutdown_timeout`], then disconnects.
    ///
    /// Every clone of the handle is closed with it; later operations fail with
    /// [`Error::Closed`](crate::Error::Closed). Closing twice is harmless. Dropping the future
    /// leaves the rest to the background.
    pub async fn close(&self) -> Shutdown {
        self.core.close().await
    }
}
