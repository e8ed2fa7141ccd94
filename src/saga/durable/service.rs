//! The durable saga: starting runs, and what can be asked of them.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    drive::{AFTER_LOSS, ALIEN_DELAY, Drive},
    entry::RunStatus,
    journal::{NewRun, RunClaim, RunLease, SagaJournal, StartedRun, commit},
    owner::{LetGo, Owner, give_up, in_time},
    progress::Progress,
    report::{SagaReport, Tally},
    wait::Wait,
    worker::SagaWorker,
};
use crate::{
    backoff::Backoff,
    error::{BoxError, Error, Result, with_causes},
    saga::{
        definition::{Definition, Remembering, SagaBuilder},
        outcome::SagaOutcome,
        step::Form,
    },
    store::{OwnedTransaction, check_short_text, run_to_end},
    telemetry::TraceContext,
};

/// With a shorter lease an owner that only waits for its turn would lose its run.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// How many runs one claim takes.
const BATCH: u32 = 16;

/// How often a caller that waits for a run looks at it.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// A saga whose runs are remembered in a journal.
///
/// A run belongs to no process: whoever has the definition and the journal goes on with it, one
/// process at a time. Start a [`worker`](Self::worker) in each service instance; then runs that were
/// [started](Self::start) are driven to their ends, through crashes, restarts and waits of days.
///
/// Each step and each compensation runs at least once. One that was under way when its process died
/// runs again with the same [idempotency key](crate::StepContext::idempotency_key), or is
/// compensated, as [declared](crate::saga::InDoubt).
///
/// Cheap to clone.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use acemq::{Saga, SqliteSagaJournal, StepError};
///
/// #[derive(Clone, serde::Serialize, serde::Deserialize)]
/// struct Order { paid: bool }
///
/// # pub async fn run() -> acemq::Result<()> {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1)
/// #     .connect("sqlite::memory:").await.unwrap();
/// let journal = SqliteSagaJournal::new(pool);
/// journal.migrate().await?;
/// let saga = Saga::<Order>::named("fulfil-order")
///     .durable(journal)
///     .step("take-payment", |_: Order| async { Ok::<_, StepError>(Order { paid: true }) })
///     .compensate_with(|_: Order| async { Ok::<_, StepError>(()) })
///     .build()?;
///
/// let started = saga.start("order-42", &Order { paid: false }).await?;
/// saga.resume_all().await?; // a worker does this all the time
/// assert_eq!(saga.status(started.id).await?.unwrap().completed(), ["take-payment"]);
/// assert!(!saga.start("order-42", &Order { paid: false }).await?.is_new);
/// # Ok(())
/// # }
/// # }
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() { example::run().await.unwrap() }
/// # #[cfg(not(feature = "sqlite"))]
/// # fn main() {}
/// ```
pub struct DurableSaga<T, J> {
    pub(super) core: Arc<Core<T, J>>,
}

/// What the clones of a durable saga share.
pub(super) struct Core<T, J> {
    pub(super) definition: Arc<Definition<T>>,
    pub(super) version: u32,
    pub(super) journal: J,
    pub(super) lease: Duration,
    /// Wakes a worker of this process.
    pub(super) wake: Notify,
}

impl<T, J> Clone for DurableSaga<T, J> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

impl<T, J> fmt::Debug for DurableSaga<T, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableSaga")
            .field("name", &self.core.definition.name)
            .field("version", &self.core.version)
            .finish_non_exhaustive()
    }
}

impl<T, Last, J> SagaBuilder<T, Last, J>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    J: SagaJournal,
{
    /// Checks the definition of a durable saga.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for what a saga in memory refuses as well, a saga without steps, a
    /// name that the journal could not hold, a lease below 100 ms, and an answer that is waited for no
    /// time.
    pub fn build(self) -> Result<DurableSaga<T, J>> {
        let (definition, journal, Remembering { version, lease }) = self.checked()?;
        check_short_text("saga", &definition.name)?;
        if lease < SHORTEST_LEASE {
            return Err(Error::invalid("lease", format!("{lease:?}"), "is below 100 ms"));
        }
        if definition.steps.is_empty() {
            return Err(Error::invalid("saga", &definition.name, "has no step to remember"));
        }
        for step in &definition.steps {
            check_short_text("step", &step.name)?;
            if let Form::Wait(Wait::Answer { within, .. }) = &step.form
                && within.is_zero()
            {
                return Err(Error::invalid("within", &*step.name, "leaves the answer no time"));
            }
        }
        let core =
            Core { definition: Arc::new(definition), version, journal, lease, wake: Notify::new() };
        Ok(DurableSaga { core: Arc::new(core) })
    }
}

impl<T, J> DurableSaga<T, J>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    J: SagaJournal,
{
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.definition.name
    }

    /// Returns the version of the definition.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.core.version
    }

    /// Starts a run, unless the saga has one of this key. Somebody's [`worker`](Self::worker) drives
    /// it.
    ///
    /// The key is remembered for as long as the run is, which is 30 days after its end by default.
    /// Dropping the future leaves it open whether the run was started; start it again with its key.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for a key over 255 bytes, or an empty one.
    /// - [`Error::Codec`] for a state that cannot be written as JSON.
    /// - [`Error::Store`] if the database fails.
    pub async fn start(&self, key: &str, state: &T) -> Result<StartedRun> {
        let started = self.create(self.new_run(key, state, None)?).await?;
        self.core.wake.notify_one();
        Ok(started)
    }

    /// Starts a run in the caller's transaction: it exists if that commits, and never did if it
    /// rolls back.
    ///
    /// Call [`wake`](Self::wake) after the commit for the shortest delay.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub async fn start_in(
        &self,
        transaction: &mut OwnedTransaction<J::Database>,
        key: &str,
        state: &T,
    ) -> Result<StartedRun> {
        let run = self.new_run(key, state, None)?;
        self.core.journal.create(transaction, &run).await
    }

    /// Starts a run, unless the saga has one of this key, and waits for its end.
    ///
    /// Without a worker as well: the run is driven from here, in a task of its own. Dropping the
    /// future does not stop it, and neither does a crash, after which a worker goes on.
    ///
    /// # Errors
    ///
    /// - Those of [`start`](Self::start), and of reading the run.
    /// - [`Error::Codec`] if the state at the end cannot be read.
    pub async fn run(&self, key: &str, state: &T) -> Result<SagaOutcome<T>> {
        let (since, token) = (Instant::now(), Uuid::new_v4());
        let new = self.new_run(key, state, Some((token, self.core.lease)))?;
        let (progress, trace) = (Progress::new(&new.state), new.trace.clone());
        let started = self.create(new).await?;
        if started.is_new {
            let lease = RunLease { run: started.id, token };
            let mut drive = self.drive_of(lease, since, progress, None, CancellationToken::new());
            let driven = tokio::spawn(within(trace, async move {
                drive.drive().await.map(|_| drive.owner.progress)
            }));
            if let Ok(Ok(progress)) = driven.await {
                return outcome_of(&progress);
            }
        }
        self.outcome(started.id).await
    }

    /// Waits for the end of a run, and drives it from here whenever nobody else does.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`] if there is no such run, or if it is one of another version that has not
    ///   ended.
    /// - [`Error::Codec`] if the state at the end cannot be read.
    /// - [`Error::Store`] if the database fails.
    pub async fn outcome(&self, id: Uuid) -> Result<SagaOutcome<T>> {
        let mut look = Backoff::new(FIRST_LOOK, LAST_LOOK);
        loop {
            let run = self.status(id).await?;
            let run = run.ok_or_else(|| not_found(format!("the saga has no run {id}")))?;
            if run.status().has_ended() {
                return outcome_of(run.progress());
            }
            if run.version() != self.core.version {
                return Err(not_found(format!(
                    "run {id} is one of version {}, and this is version {}",
                    run.version(),
                    self.core.version
                )));
            }
            if self.take_up(id).await? {
                look.reset();
            } else {
                tokio::time::sleep(look.next()).await;
            }
        }
    }

    /// Drives a run if it is due; returns whether it was.
    async fn take_up(&self, id: Uuid) -> Result<bool> {
        let since = Instant::now();
        let claimed = in_time(self.core.journal.claim(&self.claim_of(Some(id), 1))).await?;
        let Some(lease) = claimed.first().copied() else { return Ok(false) };
        let saga = self.clone();
        let stopping = CancellationToken::new();
        let _ = tokio::spawn(async move { saga.resume(lease, since, stopping).await }).await;
        Ok(true)
    }

    /// Drives every run of this version that is due, until none is left; returns how they went.
    ///
    /// For a process that has no worker, such as a job. Runs of a process that died are due when
    /// their leases have ended.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the database fails while it looks for runs.
    pub async fn resume_all(&self) -> Result<SagaReport> {
        let tally = Arc::new(Tally::default());
        loop {
            let since = Instant::now();
            let leases = in_time(self.core.journal.claim(&self.claim_of(None, BATCH))).await?;
            if leases.is_empty() {
                tally.see_versions(self.other_versions().await?);
                return Ok(tally.report());
            }
            tally.claimed(leases.len());
            let drives: Vec<_> = leases
                .into_iter()
                .map(|lease| {
                    let (saga, tally) = (self.clone(), Arc::clone(&tally));
                    tokio::spawn(async move {
                        tally.note(&saga.resume(lease, since, CancellationToken::new()).await);
                    })
                })
                .collect();
            for drive in drives {
                let _ = drive.await;
            }
        }
    }

    /// Returns a worker, to be started: it drives the runs of this version for as long as the
    /// process lives.
    #[must_use = "a worker does nothing until it is started"]
    pub fn worker(&self) -> SagaWorker<T, J> {
        SagaWorker::new(self.clone())
    }

    /// Makes a worker of this process look for runs now. Call it after the commit of
    /// [`start_in`](Self::start_in).
    pub fn wake(&self) {
        self.core.wake.notify_one();
    }

    fn new_run(&self, key: &str, state: &T, lease: Option<(Uuid, Duration)>) -> Result<NewRun> {
        if key.is_empty() {
            return Err(Error::invalid("key", key, "is empty"));
        }
        check_short_text("key", key)?;
        Ok(NewRun {
            id: Uuid::now_v7(),
            saga: self.name().to_owned(),
            version: self.core.version,
            key: key.to_owned(),
            state: serde_json::to_string(state).map_err(unencodable)?,
            trace: TraceContext::current(),
            lease,
        })
    }

    async fn create(&self, run: NewRun) -> Result<StartedRun> {
        let journal = self.core.journal.clone();
        let created = run_to_end("start a run", async move {
            let mut tx = journal.begin().await?;
            let started = journal.create(&mut tx, &run).await?;
            commit(tx).await?;
            Ok(started)
        });
        in_time(created).await
    }

    pub(super) fn claim_of(&self, only: Option<Uuid>, limit: u32) -> RunClaim {
        let (saga, version) = (self.name().to_owned(), self.core.version);
        RunClaim { saga, version, only, limit, lease: self.core.lease }
    }

    pub(super) async fn other_versions(&self) -> Result<Vec<u32>> {
        in_time(self.core.journal.other_versions(self.name(), self.core.version)).await
    }

    /// Reads a claimed run and drives it. `since` is a time before the claim.
    pub(super) async fn resume(
        &self,
        lease: RunLease,
        since: Instant,
        stopping: CancellationToken,
    ) -> Result<RunStatus, LetGo> {
        let run = match in_time(self.core.journal.load(lease.run)).await {
            Ok(Some(run)) => run,
            Ok(None) => return Err(LetGo::Lost("the run is not there any more".to_owned())),
            Err(error) => {
                let (saga, run, reason) = (self.name(), lease.run, with_causes(&error));
                tracing::warn!(saga, %run, reason, "a run could not be read");
                give_up(&self.core.journal, &lease, AFTER_LOSS, None).await;
                return Err(LetGo::Lost(reason));
            }
        };
        let progress = Progress::replay(&run.state, &run.entries);
        let waited = run.waits_until.map(|time| (time, run.wait_is_over));
        let mut drive = self.drive_of(lease, since, progress, waited, stopping);
        // Steps that panic are no panic here; what serde calls of the state's type may be.
        let driven = AssertUnwindSafe(within(run.trace, drive.drive())).catch_unwind().await;
        if let Ok(ended) = driven {
            return ended;
        }
        let problem = "reading or writing its state panicked".to_owned();
        tracing::error!(saga = self.name(), run = %lease.run, problem, "left a run alone");
        give_up(&self.core.journal, &lease, ALIEN_DELAY, Some(problem)).await;
        Err(LetGo::GivenBack)
    }

    fn drive_of(
        &self,
        lease: RunLease,
        since: Instant,
        progress: Progress,
        waited: Option<(i64, bool)>,
        stopping: CancellationToken,
    ) -> Drive<T, J> {
        let (journal, length) = (self.core.journal.clone(), self.core.lease);
        let owner = Owner::new(journal, lease, (since, length), stopping, progress);
        Drive { definition: Arc::clone(&self.core.definition), owner, waited }
    }
}

fn outcome_of<T: DeserializeOwned>(progress: &Progress) -> Result<SagaOutcome<T>> {
    let state = serde_json::from_str(&progress.state).map_err(undecodable)?;
    Ok(progress.outcome(state))
}

/// Drives a run under the trace context of whoever started it.
async fn within<F: Future>(trace: Option<TraceContext>, drive: F) -> F::Output {
    match trace {
        Some(trace) => trace.scope(drive).await,
        None => drive.await,
    }
}

fn not_found(reason: String) -> Error {
    Error::NotFound { reason }
}

fn codec(action: &'static str, source: BoxError) -> Error {
    Error::Codec { action, content_type: "application/json".to_owned(), source }
}

pub(super) fn unencodable(error: serde_json::Error) -> Error {
    codec("encode", error.into())
}

pub(super) fn undecodable(error: impl Into<BoxError>) -> Error {
    codec("decode", error.into())
}
