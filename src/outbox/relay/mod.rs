//! The relay: takes committed records out of an outbox and publishes them.

mod engine;
mod handle;
mod health;
mod lanes;
mod options;
mod outcome;
mod report;
mod retry_delay;
mod run;
mod running;
mod target;

use std::{sync::Arc, time::Duration};

pub use report::RelayReport;
pub use retry_delay::RetryDelay;
pub use running::RunningRelay;
pub use target::OutboxTarget;

use self::{engine::Engine, options::RelayOptions};
use super::OutboxStore;
use crate::{error::Result, store::run_to_end};

/// The most passes that [`OutboxRelay::drain`] makes.
const DRAIN_CEILING: u32 = 10_000;

/// Publishes what stands in an outbox: in the background after [`start`](Self::start), or batch by
/// batch with [`drain_once`](Self::drain_once) where a job or a timer drives it.
///
/// Claiming, publishing and marking overlap: while one batch is being published the next one is
/// claimed, and one statement marks a batch. No database transaction is open while a publish
/// waits for the broker. Any number of relays may work on one table.
///
/// # Examples
///
/// ```no_run
/// use acemq::outbox::{OutboxRelay, OutboxTarget, SqliteOutbox};
///
/// # async fn example<T: OutboxTarget + Clone>(mq: T, outbox: SqliteOutbox) {
/// let relay = OutboxRelay::new(&mq, outbox.clone()).batch_size(500).start();
/// // .. until the service stops ..
/// relay.close().await;
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a relay does nothing until it is started or drained"]
pub struct OutboxRelay<T, S> {
    target: T,
    store: Arc<S>,
    options: RelayOptions,
}

impl<T: OutboxTarget + Clone, S: OutboxStore> OutboxRelay<T, S> {
    /// Creates a relay from an outbox to a target, which is the connection handle or anything
    /// else that publishes.
    pub fn new(target: &T, store: S) -> Self {
        let store = Arc::new(store);
        Self { target: target.clone(), store, options: RelayOptions::default() }
    }

    /// Sets how many records a claim takes at most. Default: 100; from 1 to 10,000.
    ///
    /// Larger batches cost fewer statements a record; a relay that dies leaves a larger batch
    /// waiting for the end of its lease.
    pub fn batch_size(mut self, records: u32) -> Self {
        self.options.batch_size = records.clamp(1, 10_000);
        self
    }

    /// Sets how long an idle relay waits before it looks again. Default: 1 s; at least 1 ms.
    ///
    /// A wake-up after commit makes a relay of the same process look at once; the poll finds the
    /// records of other processes, delayed records and records to be tried again.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.options.poll_interval = interval.max(Duration::from_millis(1));
        self
    }

    /// Sets how long a claim holds. Default: 60 s; at least 100 ms.
    ///
    /// It is renewed while a batch is slow, so it bounds only how long the records of a relay
    /// that died wait for another one.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.max(Duration::from_millis(100));
        self
    }

    /// Sets how many publishes are in flight at a time. Default: 256; at least 1.
    pub fn concurrency(mut self, publishes: usize) -> Self {
        self.options.concurrency = publishes.clamp(1, 100_000);
        self
    }

    /// Sets after how many failures of its own a record retires. Default: 10; at least 1.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = attempts.max(1);
        self
    }

    /// Sets how long a failed record waits. Default: 1 s, doubling up to 5 min.
    pub fn retry_delay(mut self, delay: RetryDelay) -> Self {
        self.options.retry_delay = delay;
        self
    }

    /// Sets how long published records are kept. Default: 24 h; `None` keeps them for ever.
    ///
    /// A running relay deletes older ones, a thousand at a time.
    pub fn retention(mut self, retention: impl Into<Option<Duration>>) -> Self {
        self.options.retention = retention.into();
        self
    }

    /// Sets how often a running relay looks for records to delete. Default: 60 s; at least 10 ms.
    pub fn purge_interval(mut self, interval: Duration) -> Self {
        self.options.purge_interval = interval.max(Duration::from_millis(10));
        self
    }

    /// Starts the relay in the background.
    ///
    /// It first compares the table with what it needs, and does not claim before that succeeds. It
    /// survives every failure of the database and the broker, waits with growing, jittered delays,
    /// and logs once when it loses one and once when it has it back.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start(self) -> RunningRelay {
        RunningRelay::start(Engine::new(self.target, self.store, self.options))
    }

    /// Claims one batch, publishes it, and returns the tally.
    ///
    /// A record that fails by itself is counted in the tally and is not an error. If the future is
    /// dropped, the batch is finished in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Store`](crate::Error::Store) if nothing could be claimed because the database
    /// failed.
    pub async fn drain_once(&self) -> Result<RelayReport> {
        let (target, store) = (self.target.clone(), Arc::clone(&self.store));
        let engine = Arc::new(Engine::new(target, store, self.options.clone()));
        run_to_end("drain the outbox", engine.pass()).await
    }

    /// Calls [`drain_once`](Self::drain_once) while it publishes something, at most `max_passes`
    /// times, and returns the whole tally. Zero, and anything over it, means 10,000.
    ///
    /// What is left then failed, waits for its time, or stands behind such a record of its key.
    ///
    /// # Errors
    ///
    /// [`Error::Store`](crate::Error::Store) if the database fails; what was published before that
    /// stays published.
    pub async fn drain(&self, max_passes: u32) -> Result<RelayReport> {
        let passes = if max_passes == 0 { DRAIN_CEILING } else { max_passes.min(DRAIN_CEILING) };
        let mut total = RelayReport::default();
        for _ in 0..passes {
            let report = self.drain_once().await?;
            let progress = report.published > 0;
            total.merge(report);
            if !progress {
                break;
            }
        }
        Ok(total)
    }
}
