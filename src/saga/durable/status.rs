//! What an operator sees of a run.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    entry::{JournaledRun, RunStatus},
    progress::Progress,
};
use crate::saga::{SagaFailure, Unresolved};

/// A run of a durable saga, as the journal has it.
#[derive(Debug, Clone)]
pub struct SagaRun {
    run: JournaledRun,
    progress: Progress,
}

impl SagaRun {
    pub(super) fn new(run: JournaledRun) -> Self {
        let progress = Progress::replay(&run.state, &run.entries);
        Self { run, progress }
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.run.id
    }

    /// Returns the key that it was started with.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.run.key
    }

    /// Returns the version of the definition that it was started with.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.run.version
    }

    /// Returns where it stands.
    #[must_use]
    pub fn status(&self) -> RunStatus {
        self.run.status
    }

    /// Returns the state after the last step that was done, as JSON.
    #[must_use]
    pub fn state_json(&self) -> &str {
        &self.progress.state
    }

    /// Returns the names of the steps that were done, in the order in which they ended.
    #[must_use]
    pub fn completed(&self) -> &[String] {
        &self.progress.completed
    }

    /// Returns the name of the step that failed.
    #[must_use]
    pub fn failed_at(&self) -> Option<&str> {
        self.progress.failure.as_ref().map(|(step, _)| step.as_str())
    }

    /// Returns why it failed.
    #[must_use]
    pub fn failure(&self) -> Option<&SagaFailure> {
        self.progress.failure.as_ref().map(|(_, failure)| failure)
    }

    /// Returns the names of the steps that were undone, in that order.
    #[must_use]
    pub fn undone(&self) -> &[String] {
        &self.progress.undone
    }

    /// Returns the names of the steps that should have been undone and have no compensation.
    #[must_use]
    pub fn passed_over(&self) -> &[String] {
        &self.progress.passed_over
    }

    /// Returns the steps whose compensation failed, and why.
    #[must_use]
    pub fn unresolved(&self) -> &[Unresolved] {
        &self.progress.unresolved
    }

    /// Returns the name of the answer that it waits for.
    #[must_use]
    pub fn waits_for(&self) -> Option<&str> {
        self.run.waits_for.as_deref()
    }

    /// Returns until when it waits: for a time, for an answer, or for the next attempt.
    #[must_use]
    pub fn waits_until(&self) -> Option<DateTime<Utc>> {
        self.run.waits_until.and_then(DateTime::from_timestamp_millis)
    }

    /// Returns why the last process that took it up has given it back, if that is something to
    /// look at: an unknown step, a state that cannot be read.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.run.problem.as_deref()
    }

    /// Returns what was noted when it was resolved.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.run.note.as_deref()
    }

    /// Returns when it was started, by the database's clock.
    #[must_use]
    pub fn created_at(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.run.created_at).unwrap_or_default()
    }

    /// Returns when it ended, by the database's clock.
    #[must_use]
    pub fn ended_at(&self) -> Option<DateTime<Utc>> {
        self.run.ended_at.and_then(DateTime::from_timestamp_millis)
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }
}
