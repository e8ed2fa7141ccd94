//! The contract between a durable saga and the tables that remember its runs.

use std::time::Duration;

use uuid::Uuid;

use super::entry::{JournalEntry, JournaledRun, RunStatus};
use crate::{
    error::Result,
    store::{Database, OwnedTransaction, failed},
    telemetry::TraceContext,
};

/// Remembers the runs of sagas, so that another process can go on where one has died.
///
/// `PostgresSagaJournal`, `MySqlSagaJournal` and `SqliteSagaJournal` are journals; implement it to
/// wrap one, or to keep tables of your own. What a saga relies on:
///
/// - **Fencing.** A claim writes a fresh random token into each run. [`record`](Self::record) and
///   [`renew`](Self::renew) change a run only while it carries the token they are given.
/// - **Leases by the database's clock.** Nothing compares a stored time with the application's.
/// - **Once.** Entries that are written again under the same sequence number change nothing, so
///   that a write whose outcome is unknown can be repeated.
///
/// The futures may be dropped at any point; the work has then happened or it has not. All methods
/// fail with [`Error::Store`](crate::Error::Store) if the database does.
pub trait SagaJournal: Clone + Send + Sync + 'static {
    /// The database, for instance `sqlx::Postgres`.
    type Database: Database;

    /// Begins a transaction.
    fn begin(&self) -> impl Future<Output = Result<OwnedTransaction<Self::Database>>> + Send;

    /// Writes a run in the caller's transaction, unless one with its saga and key is there.
    fn create(
        &self,
        transaction: &mut OwnedTransaction<Self::Database>,
        run: &NewRun,
    ) -> impl Future<Output = Result<StartedRun>> + Send;

    /// Leases runs that are due to the caller, the longest due first.
    fn claim(&self, claim: &RunClaim) -> impl Future<Output = Result<Vec<RunLease>>> + Send;

    /// Writes entries and what becomes of the run, in a transaction; returns whether the run still
    /// had the token. The caller commits, or rolls back if it had not.
    fn record(
        &self,
        transaction: &mut OwnedTransaction<Self::Database>,
        lease: &RunLease,
        entries: &[JournalEntry],
        next: &RunNext,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Does what [`record`](Self::record) does in a transaction of its own.
    fn write(
        &self,
        lease: &RunLease,
        entries: &[JournalEntry],
        next: &RunNext,
    ) -> impl Future<Output = Result<bool>> + Send {
        async move {
            let mut transaction = self.begin().await?;
            let held = self.record(&mut transaction, lease, entries, next).await?;
            if held {
                commit(transaction).await?;
            }
            Ok(held)
        }
    }

    /// Lets a lease end `lease` from now; returns whether the run still had the token.
    fn renew(
        &self,
        lease: &RunLease,
        length: Duration,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads a run with its entries, the first one first.
    fn load(&self, id: Uuid) -> impl Future<Output = Result<Option<JournaledRun>>> + Send;

    /// Finds runs of a saga, the oldest first.
    fn find(
        &self,
        saga: &str,
        which: RunFilter<'_>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    /// Counts the runs of a saga that have ended with this status.
    fn count(&self, saga: &str, status: RunStatus) -> impl Future<Output = Result<u64>> + Send;

    /// Keeps an answer for a run that waits for it, or will, and makes a waiting one due. Returns
    /// whether the run is there, has not ended, and had no answer of that name.
    fn signal(
        &self,
        transaction: &mut OwnedTransaction<Self::Database>,
        id: Uuid,
        name: &str,
        payload: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads an answer that [`signal`](Self::signal) has kept. In a transaction that has recorded
    /// that the run waits, it must see every answer that did not make the run due.
    fn signalled(
        &self,
        transaction: &mut OwnedTransaction<Self::Database>,
        id: Uuid,
        name: &str,
    ) -> impl Future<Output = Result<Option<String>>> + Send;

    /// Ends the matter of an unresolved run, or makes it due again; returns whether it was one.
    fn settle(
        &self,
        saga: &str,
        id: Uuid,
        how: Settlement<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Returns the versions of a saga that have runs which are due, other than the given one.
    fn other_versions(
        &self,
        saga: &str,
        version: u32,
    ) -> impl Future<Output = Result<Vec<u32>>> + Send;

    /// Deletes at most `limit` runs of a saga that ended longer ago than `older_than`, unresolved
    /// ones excepted; returns how many.
    fn purge(
        &self,
        saga: &str,
        older_than: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Compares the tables with what the journal needs. Default: nothing to compare.
    fn check(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// Commits a transaction in which no statement has failed unseen.
pub(super) async fn commit<D: Database>(transaction: OwnedTransaction<D>) -> Result<()> {
    transaction.commit().await.map_err(failed("commit"))
}

/// A run to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// Its id.
    pub id: Uuid,
    /// The name of the saga.
    pub saga: String,
    /// The version of the saga's definition.
    pub version: u32,
    /// What it is for; one saga has one run of a key.
    pub key: String,
    /// The state to begin with, as JSON.
    pub state: String,
    /// The trace that the run belongs to.
    pub trace: Option<TraceContext>,
    /// The token and length of a lease, if the creator runs it itself.
    pub lease: Option<(Uuid, Duration)>,
}

/// A run that was started, now or earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartedRun {
    /// The id of the run of that key.
    pub id: Uuid,
    /// Whether this call has started it; `false` if it was there.
    pub is_new: bool,
}

impl StartedRun {
    /// Creates a value, for journals.
    #[must_use]
    pub fn new(id: Uuid, is_new: bool) -> Self {
        Self { id, is_new }
    }
}

/// Which runs to claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunClaim {
    /// The name of the saga.
    pub saga: String,
    /// The version; runs of others are left alone.
    pub version: u32,
    /// Only this run.
    pub only: Option<Uuid>,
    /// How many at most.
    pub limit: u32,
    /// How long the lease holds unless it is renewed.
    pub lease: Duration,
}

/// A run that is leased to one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLease {
    /// The run.
    pub run: Uuid,
    /// The fencing token.
    pub token: Uuid,
}

/// What becomes of a run with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunNext {
    /// Its owner keeps it, for the length of a lease from now.
    Keep {
        /// The length of the lease.
        lease: Duration,
        /// Whether it is on its way back.
        compensating: bool,
    },
    /// It is let go, and due later.
    Wait {
        /// When.
        until: WaitUntil,
        /// The name of the answer that makes it due earlier.
        signal: Option<String>,
    },
    /// It is let go because of something that a later process may do better, and due later.
    GiveBack {
        /// For how long it is left alone.
        delay: Duration,
        /// What an operator should know.
        problem: Option<String>,
    },
    /// It has ended.
    End(RunStatus),
}

impl RunNext {
    /// Returns whether the run goes on without its owner.
    pub(super) fn gives_up(&self) -> bool {
        matches!(self, Self::Wait { .. } | Self::GiveBack { .. })
    }
}

/// A time to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitUntil {
    /// Milliseconds since the epoch.
    At(i64),
    /// From now, by the database's clock.
    After(Duration),
}

/// Which runs to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunFilter<'a> {
    /// The one of this key.
    Key(&'a str),
    /// Those of this status that have ended.
    Ended(RunStatus),
}

/// What to do with an unresolved run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement<'a> {
    /// Somebody has put it right.
    Resolve {
        /// What was done about it.
        note: &'a str,
    },
    /// The compensations that failed are tried again: the run becomes due, with an entry of the
    /// kind [`Reopened`](super::EntryKind::Reopened) after its others.
    Retry,
}
