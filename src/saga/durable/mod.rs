//! Sagas that outlive their process: each run is remembered in a journal.
//!
//! How it fits together: the `journal` is the contract with the tables, and `entry` what they hold;
//! `postgres`, `mysql` and `sqlite` keep the `contract` by the same `statements`. `progress` is the
//! sum of a run's entries. An `owner` holds the lease of a run and writes its entries, and `drive`
//! walks the run on them: `forward`, `backward`, or up to a `pause`. `service` starts runs,
//! `operating` answers questions about them (`status`), `worker` takes up whatever is due
//! (`report`), and `wait` adds the steps that only a durable saga has.

mod backward;
mod contract;
mod drive;
mod entry;
mod failure;
mod forward;
mod health;
mod journal;
#[cfg(feature = "mysql")]
mod mysql;
mod operating;
mod owner;
mod pause;
#[cfg(feature = "postgres")]
mod postgres;
mod progress;
mod report;
mod service;
mod shared;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod status;
mod wait;
mod worker;

pub use entry::{EntryKind, JournalEntry, JournaledRun, RunStatus};
pub use journal::{
    NewRun, RunClaim, RunFilter, RunLease, RunNext, SagaJournal, Settlement, StartedRun, WaitUntil,
};
#[cfg(feature = "mysql")]
pub use mysql::MySqlSagaJournal;
#[cfg(feature = "postgres")]
pub use postgres::PostgresSagaJournal;
pub use report::SagaReport;
pub use service::DurableSaga;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteSagaJournal;
pub use status::SagaRun;
pub(super) use wait::{TransactionalWork, Wait};
pub use worker::{RunningSagaWorker, SagaWorker};
