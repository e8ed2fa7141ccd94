//! Sagas: steps that must all happen, each with something that undoes it.
//!
//! A [`Saga`] runs its steps in order. When one fails, the steps before it are compensated in
//! reverse. Compensation runs in a task of its own, which no cancelled or dropped caller can stop,
//! and goes on when one compensation fails: what could not be undone is listed as unresolved.
//!
//! - A step that fails is **not** compensated itself: it says "not done". One that says "outcome
//!   unknown" ([`StepError::unknown`]), panics or runs out of time may have taken effect, and is
//!   compensated with the others.
//! - In memory, as here, a saga ends with its process: a crash leaves what was done as it is.
//!
//! How it fits together: `definition` builds the list of `step`s, `run` walks it forward and, after
//! a failure, backward, and `outcome` tells how it ended.

mod context;
mod definition;
mod error;
mod outcome;
mod run;
mod step;

pub use context::StepContext;
pub use definition::{Compensated, Open, ParallelSteps, Saga, SagaBuilder, Stepped};
pub use error::{SagaFailure, Source, StepError};
pub use outcome::{SagaOutcome, Unresolved};
pub use step::{Changes, Looks, StepFn, Updates};
