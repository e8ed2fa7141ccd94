//! The handle of a started relay.

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{OutboxTarget, engine::Engine, health::RelayHealth, report::Stats, run};
use crate::{
    connection::HealthSource,
    outbox::{Notifier, OutboxStore},
};

/// A relay at work.
///
/// Close it with [`close`](Self::close). Dropping it stops it as well: it takes no further batch,
/// and finishes those in flight in the background.
#[must_use = "dropping the handle stops the relay"]
pub struct RunningRelay {
    /// Told with the target's health as long as this handle is held.
    _health: Arc<dyn HealthSource>,
    stats: Arc<Stats>,
    notifier: Notifier,
    stopping: CancellationToken,
    finished: CancellationToken,
}

impl RunningRelay {
    pub(super) fn start<T: OutboxTarget, S: OutboxStore>(engine: Engine<T, S>) -> Self {
        let (stats, finished) = (Arc::<Stats>::default(), CancellationToken::new());
        let health: Arc<dyn HealthSource> = Arc::new(RelayHealth {
            store: Arc::clone(&engine.store),
            stats: Arc::clone(&stats),
            finished: finished.clone(),
        });
        engine.target.watch(&health);
        let handle = Self {
            _health: health,
            stats,
            notifier: engine.store.notifier().unwrap_or_default(),
            stopping: engine.stopping.clone(),
            finished,
        };
        let work = run::supervise(Arc::new(engine), handle.stats.clone(), handle.notifier.clone());
        let finished = handle.finished.clone().drop_guard();
        tokio::spawn(async move {
            let _finished = finished;
            work.await;
        });
        handle
    }

    /// Stops taking records, finishes the batches in flight, and returns when that is done.
    ///
    /// That takes as long as the target takes to answer, and at most 30 s more should the database
    /// not answer. It may be called more than once. Dropping the future does not undo it.
    pub async fn close(&self) {
        self.stopping.cancel();
        self.finished.cancelled().await;
    }

    /// Returns whether the relay is at work: until [`close`](Self::close) is done.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.finished.is_cancelled()
    }

    /// Makes the relay look for records now. A hint: it may find none.
    pub fn wake(&self) {
        self.notifier.wake();
    }

    /// Returns how many records were published and marked since the start.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.stats.published()
    }

    /// Returns how many attempts were spent since the start, last attempts included.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.stats.failed()
    }

    /// Returns how many records were retired since the start.
    #[must_use]
    pub fn retired(&self) -> u64 {
        self.stats.retired()
    }

    /// Returns how many records could not be marked after their publish, because the lease had
    /// gone to another relay or the database was away; they may be published twice.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.stats.lost()
    }

    /// Returns how old the oldest record of the last claim was when it was claimed; zero if that
    /// claim found nothing.
    #[must_use]
    pub fn lag(&self) -> Duration {
        self.stats.lag()
    }

    /// Returns the text of the last error of a publish or of the database.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.stats.last_error()
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

impl fmt::Debug for RunningRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningRelay")
            .field("running", &self.is_running())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
