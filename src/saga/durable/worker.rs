//! The worker: it drives whatever runs are due, for as long as the process lives.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    journal::SagaJournal,
    owner::in_time,
    report::{SagaReport, Tally},
    service::DurableSaga,
};
use crate::{
    backoff::Backoff,
    error::{Error, Result, with_causes},
};

/// How often ended runs are purged, and runs of other versions looked for.
const HOUSEKEEPING: Duration = Duration::from_mins(1);

/// How many runs one purge deletes, and when the next one follows if there may be more.
const PURGE_BATCH: u32 = 500;
const AFTER_FULL_PURGE: Duration = Duration::from_secs(1);

/// A worker to be started; see [`DurableSaga::worker`].
#[must_use = "a worker does nothing until it is started"]
pub struct SagaWorker<T, J> {
    saga: DurableSaga<T, J>,
    concurrency: u32,
    poll_interval: Duration,
    retention: Duration,
}

impl<T, J> fmt::Debug for SagaWorker<T, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SagaWorker")
            .field("saga", &self.saga)
            .field("concurrency", &self.concurrency)
            .field("poll_interval", &self.poll_interval)
            .field("retention", &self.retention)
            .finish()
    }
}

impl<T, J> SagaWorker<T, J>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    J: SagaJournal,
{
    pub(super) fn new(saga: DurableSaga<T, J>) -> Self {
        Self {
            saga,
            concurrency: 16,
            poll_interval: Duration::from_secs(1),
            retention: Duration::from_hours(30 * 24),
        }
    }

    /// Sets how many runs are driven at a time. Default: 16. Runs that wait do not count.
    pub fn concurrency(mut self, runs: u32) -> Self {
        self.concurrency = runs;
        self
    }

    /// Sets how often the worker looks for runs that other processes have started, or that are due.
    /// Default: 1 s. Runs that this process starts are taken up at once.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Sets for how long ended runs, and their keys, are kept. Default: 30 days. Unresolved runs are
    /// kept until they are resolved.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Starts the worker.
    ///
    /// It tries until the journal answers, and whenever it fails again: a database that is away
    /// holds the runs up, and ends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for a concurrency or an interval of zero.
    pub fn start(self) -> Result<RunningSagaWorker> {
        if self.concurrency == 0 {
            return Err(Error::invalid("concurrency", 0, "lets no run be driven"));
        }
        if self.poll_interval.is_zero() {
            return Err(Error::invalid("poll_interval", "0s", "would never rest"));
        }
        let running = RunningSagaWorker {
            tally: Arc::default(),
            stopping: CancellationToken::new(),
            finished: CancellationToken::new(),
        };
        let finished = running.finished.clone().drop_guard();
        let (tally, stopping) = (Arc::clone(&running.tally), running.stopping.clone());
        tokio::spawn(async move {
            let _finished = finished;
            Loop { worker: self, tally, stopping, drives: TaskTracker::new() }.run().await;
        });
        Ok(running)
    }
}

/// A worker at work.
///
/// Close it with [`close`](Self::close). Dropping it stops it as well: it takes no further run, and
/// gives those at hand back after the step that is under way.
#[derive(Debug)]
#[must_use = "dropping the handle stops the worker"]
pub struct RunningSagaWorker {
    tally: Arc<Tally>,
    stopping: CancellationToken,
    finished: CancellationToken,
}

impl RunningSagaWorker {
    /// Stops taking runs, gives those at hand back after the step that is under way, and returns
    /// when that is done.
    ///
    /// That takes as long as those steps do. It may be called more than once. Dropping the future
    /// does not undo it.
    pub async fn close(&self) {
        self.stopping.cancel();
        self.finished.cancelled().await;
    }

    /// Returns whether the worker is at work: until [`close`](Self::close) is done.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.finished.is_cancelled()
    }

    /// Returns what it has done since its start.
    #[must_use]
    pub fn report(&self) -> SagaReport {
        self.tally.report()
    }
}

impl Drop for RunningSagaWorker {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

struct Loop<T, J> {
    worker: SagaWorker<T, J>,
    tally: Arc<Tally>,
    stopping: CancellationToken,
    drives: TaskTracker,
}

impl<T, J> Loop<T, J>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    J: SagaJournal,
{
    async fn run(self) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        while !self.stopping.is_cancelled() {
            match self.work(&mut backoff).await {
                Ok(()) => break,
                Err(error) => {
                    let text = with_causes(&error);
                    let saga = self.worker.saga.name();
                    tracing::warn!(saga, error = text, "the journal failed; starting again");
                    self.tally.update(|report| {
                        report.restarts += 1;
                        report.last_error = Some(text);
                    });
                    self.rest(backoff.next()).await;
                }
            }
        }
        self.drives.close();
        self.drives.wait().await;
    }

    /// Claims and drives until the worker is stopped; an error is the journal's.
    async fn work(&self, backoff: &mut Backoff) -> Result<()> {
        let saga = &self.worker.saga;
        in_time(saga.core.journal.check()).await?;
        let places = Arc::new(Semaphore::new(
            usize::try_from(self.worker.concurrency)
                .unwrap_or(usize::MAX)
                .min(Semaphore::MAX_PERMITS),
        ));
        let mut housekeeping = Instant::now();
        loop {
            if Instant::now() >= housekeeping {
                housekeeping = Instant::now() + self.keep_house().await?;
            }
            let place = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return Ok(()),
                // The semaphore is never closed.
                place = Arc::clone(&places).acquire_owned() => place,
            };
            drop(place);
            let free = u32::try_from(places.available_permits()).unwrap_or(u32::MAX);
            let since = Instant::now();
            let leases = in_time(saga.core.journal.claim(&saga.claim_of(None, free))).await?;
            backoff.reset();
            let idle = leases.is_empty();
            self.tally.claimed(leases.len());
            for lease in leases {
                let place = Arc::clone(&places).acquire_owned().await;
                let (saga, tally) = (saga.clone(), Arc::clone(&self.tally));
                let stopping = self.stopping.clone();
                self.drives.spawn(async move {
                    let _place = place;
                    tally.note(&saga.resume(lease, since, stopping).await);
                });
            }
            if idle {
                self.rest(self.worker.poll_interval).await;
            }
        }
    }

    /// Waits, until a run is started or the worker is to stop.
    async fn rest(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.worker.saga.core.wake.notified() => {}
            () = self.stopping.cancelled() => {}
        }
    }

    /// Returns when there is more to do.
    async fn keep_house(&self) -> Result<Duration> {
        let saga = &self.worker.saga;
        let (name, version) = (saga.name(), saga.version());
        let others = saga.other_versions().await?;
        if self.tally.see_versions(others.clone()) {
            tracing::warn!(
                saga = name,
                version,
                ?others,
                "runs of other versions wait: keep a worker of those versions until they have ended"
            );
        }
        let purge = saga.core.journal.purge(name, self.worker.retention, PURGE_BATCH);
        let purged = in_time(purge).await?;
        self.tally.update(|report| report.purged += purged);
        Ok(if purged < u64::from(PURGE_BATCH) { HOUSEKEEPING } else { AFTER_FULL_PURGE })
    }
}
