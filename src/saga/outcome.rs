//! How a saga ended.

use super::error::SagaFailure;

/// The end of a saga: complete, compensated, or with something that somebody has to look at.
#[derive(Debug, Clone)]
#[must_use = "an outcome may have unresolved steps, which nobody else will look at"]
pub struct SagaOutcome<T> {
    pub(super) state: T,
    pub(super) completed: Vec<String>,
    pub(super) failure: Option<(Option<String>, SagaFailure)>,
    pub(super) undone: Vec<String>,
    pub(super) passed_over: Vec<String>,
    pub(super) unresolved: Vec<Unresolved>,
}

/// A step that was done, or may have been, and could not be undone.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Unresolved {
    /// The name of the step.
    pub step: String,
    /// Why its compensation failed, the last time it was tried.
    pub error: SagaFailure,
}

impl<T> SagaOutcome<T> {
    /// Returns whether every step was done.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failure.is_none()
    }

    /// Returns whether the saga failed and every compensation that there is has run.
    ///
    /// Steps without a compensation do not count against it; see [`passed_over`](Self::passed_over).
    #[must_use]
    pub fn compensated(&self) -> bool {
        self.failure.is_some() && self.unresolved.is_empty()
    }

    /// Returns the name of the step that failed; none if the saga is complete, or if its caller
    /// went away before the first step.
    #[must_use]
    pub fn failed_at(&self) -> Option<&str> {
        self.failure.as_ref()?.0.as_deref()
    }

    /// Returns why the saga failed.
    #[must_use]
    pub fn failure(&self) -> Option<&SagaFailure> {
        self.failure.as_ref().map(|(_, failure)| failure)
    }

    /// Returns the names of the steps that were done, in the order in which they ended.
    #[must_use]
    pub fn completed(&self) -> &[String] {
        &self.completed
    }

    /// Returns the names of the steps that were undone, in that order.
    #[must_use]
    pub fn undone(&self) -> &[String] {
        &self.undone
    }

    /// Returns the names of the steps that should have been undone and have no compensation.
    #[must_use]
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    /// Returns the steps whose compensation failed: somebody has to look at them.
    #[must_use]
    pub fn unresolved(&self) -> &[Unresolved] {
        &self.unresolved
    }

    /// Returns whether a compensation failed.
    #[must_use]
    pub fn has_unresolved(&self) -> bool {
        !self.unresolved.is_empty()
    }

    /// Returns the state at the end: with everything that the steps have written into it.
    #[must_use = "the state is what the saga was run for"]
    pub fn state(&self) -> &T {
        &self.state
    }

    /// Takes the state out.
    #[must_use = "the state is what the saga was run for"]
    pub fn into_state(self) -> T {
        self.state
    }
}
