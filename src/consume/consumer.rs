//! The handle of a running consumer.

use std::{fmt, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{ConsumerStats, counters::Counters, places::Places};
use crate::{
    connection::{HealthSource, Shutdown},
    error::Result,
};

/// What a consumer does at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It is subscribed.
    Running,
    /// It was paused.
    Paused,
    /// It is not subscribed, with the reason, and tries again.
    Waiting(String),
    /// It was closed.
    Closed,
}

/// What its owner wants a consumer to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Running,
    Paused,
}

/// A running consumer; see [`AceMq::consumer`](crate::AceMq::consumer).
///
/// Dropping it stops the consumer in the background, as [`close`](Self::close) does in the
/// foreground: keep it as long as messages should be handled.
#[must_use = "dropping a consumer stops it"]
pub struct Consumer {
    pub(super) queue: String,
    pub(super) counters: Arc<Counters>,
    pub(super) places: Arc<Places>,
    pub(super) mode: watch::Sender<Mode>,
    pub(super) state: watch::Receiver<ConsumerState>,
    pub(super) ended: watch::Receiver<Option<Shutdown>>,
    /// Told with the handle's health as long as the consumer is held.
    pub(super) _health: Arc<dyn HealthSource>,
    pub(super) stop: CancellationToken,
    pub(super) _stop_on_drop: DropGuard,
}

impl Consumer {
    /// Returns the queue that is consumed.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Returns what the consumer does at the moment.
    #[must_use]
    pub fn state(&self) -> ConsumerState {
        self.state.borrow().clone()
    }

    /// Returns the counts since the start.
    #[must_use]
    pub fn stats(&self) -> ConsumerStats {
        self.counters.snapshot()
    }

    /// Returns how many handlers may run at the same time.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.places.number()
    }

    /// Changes how many handlers may run at the same time, from now on.
    ///
    /// Handlers that run are not cut short: with fewer places than handlers, no new one starts
    /// until enough of them have ended. The prefetch stays, and bounds the number.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`](crate::Error::InvalidOption) for zero, for more than the prefetch,
    /// and for a transactional consumer that takes batches. Nothing changes then.
    pub fn set_concurrency(&self, handlers: usize) -> Result<()> {
        self.places.change(handlers)
    }

    /// Stops taking messages until [`resume`](Self::resume). Messages that were sent ahead go
    /// back to the queue; running handlers finish.
    pub fn pause(&self) {
        self.mode.send_replace(Mode::Paused);
    }

    /// Takes messages again.
    pub fn resume(&self) {
        self.mode.send_replace(Mode::Running);
    }

    /// Stops in good order: takes no more messages, gives back those not started, and waits for
    /// running handlers at most
    /// [`shutdown_timeout`](crate::ConnectOptions::shutdown_timeout).
    ///
    /// Closing twice is harmless. Dropping the future leaves the rest to the background.
    pub async fn close(&self) -> Shutdown {
        self.stop.cancel();
        let mut ended = self.ended.clone();
        let shutdown = ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended);
        shutdown.unwrap_or(Shutdown { abandoned: 0 })
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
