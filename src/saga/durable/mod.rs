//! Sagas that outlive their process: each run is remembered in a journal.
//!
//! How it fits together: the `journal` is the contract with the tables, `sql` keeps it on each
//! database. `progress` is the sum of a run's entries. An `owner` holds the lease of a run and writes
//! its entries, and `drive` walks the run on them. `service` starts runs and answers questions
//! (`status`), `worker` takes up whatever is due (`report`), and `wait` adds the steps that only a
//! durable saga has.

mod backward;
mod drive;
mod forward;
mod journal;
mod owner;
mod pause;
mod progress;
mod report;
mod service;
mod sql;
mod statements;
mod status;
mod wait;
mod worker;

pub use journal::{
    EntryKind, JournalEntry, JournaledRun, NewRun, RunClaim, RunFilter, RunLease, RunNext,
    RunStatus, SagaJournal, Settlement, StartedRun, WaitUntil,
};
pub use report::SagaReport;
pub use service::DurableSaga;
#[cfg(feature = "mysql")]
pub use sql::MySqlSagaJournal;
#[cfg(feature = "postgres")]
pub use sql::PostgresSagaJournal;
#[cfg(feature = "sqlite")]
pub use sql::SqliteSagaJournal;
pub use status::SagaRun;
pub(super) use wait::{TransactionalWork, Wait};
pub use worker::{RunningSagaWorker, SagaWorker};
