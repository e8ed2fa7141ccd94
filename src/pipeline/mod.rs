//! Typed pipelines: a chain of steps, each with a queue of its own.
//!
//! The output of one step is the input of the next, and the compiler checks that they fit. Each
//! step retries, fails and scales by itself, and steps may run in different processes. A step's
//! result is published to the next queue, confirmed and mandatory, before the message at hand is
//! acknowledged.
//!
//! How it fits together: `builder` collects the steps and checks them, `plan` knows the route and
//! decides where a message goes next, `step` runs a handler and sends its result on, and `handle` is
//! what an application holds.

mod builder;
mod handle;
mod options;
mod plan;
mod step;

pub use crate::consume::NextHop;
pub use builder::PipelineBuilder;
pub use handle::{Pipeline, PipelineStats};
pub use options::StepOptions;
