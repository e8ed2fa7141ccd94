//! Sagas: steps that must all happen, each with something that undoes it.
//!
//! A [`Saga`] runs its steps in order. When one fails, the steps before it are compensated in
//! reverse. Compensation runs in a task of its own, which no cancelled or dropped caller can stop,
//! and goes on when one compensation fails: what could not be undone is listed as unresolved.
//!
//! - A step that fails is **not** compensated itself: it says "not done". One that says "outcome
//!   unknown" ([`StepError::unknown`]), panics or runs out of time may have taken effect, and is
//!   compensated with the others.
//! - In memory a saga ends with its process: a crash leaves what was done as it is. With
//!   `SagaBuilder::durable` each run is remembered in a journal, and another process goes on with it.
//!
//! How it fits together: `definition` builds the list of `step`s, `run` walks it forward and, after
//! a failure, backward, and `outcome` tells how it ended. `durable` does the same with a journal.

mod context;
mod definition;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod durable;
mod error;
mod outcome;
mod run;
mod step;

pub use context::StepContext;
pub use definition::{Compensated, InMemory, Open, ParallelSteps, Saga, SagaBuilder, Stepped};
#[cfg(feature = "mysql")]
pub use durable::MySqlSagaJournal;
#[cfg(feature = "postgres")]
pub use durable::PostgresSagaJournal;
#[cfg(feature = "sqlite")]
pub use durable::SqliteSagaJournal;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub use durable::{
    DurableSaga, EntryKind, JournalEntry, JournaledRun, NewRun, RunClaim, RunFilter, RunLease,
    RunNext, RunStatus, RunningSagaWorker, SagaJournal, SagaReport, SagaRun, SagaWorker,
    Settlement, StartedRun, WaitUntil,
};
pub use error::{SagaFailure, Source, StepError};
pub use outcome::{SagaOutcome, Unresolved};
pub use step::{Changes, InDoubt, Looks, StepFn, Updates};
