//! What a worker has done.

use std::sync::{Mutex, PoisonError};

use super::{entry::RunStatus, owner::LetGo};
use crate::error::Result;

/// The tally of a worker, or of one [`resume_all`](super::DurableSaga::resume_all).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SagaReport {
    /// Runs taken up; one that waits or is given back is counted again the next time.
    pub claimed: u64,
    /// Runs of which every step was done.
    pub complete: u64,
    /// Runs that failed and were undone.
    pub compensated: u64,
    /// Runs that failed and could not be undone: somebody has to look at them.
    pub unresolved: u64,
    /// Runs let go because they wait for a time, an answer or the next attempt of a step.
    pub waiting: u64,
    /// Runs given back because the worker was stopped, or because this definition cannot go on with
    /// them.
    pub given_back: u64,
    /// Runs let go because the lease was over, or the journal did not answer.
    pub lost: u64,
    /// Ended runs that were deleted.
    pub purged: u64,
    /// How often the worker has started again after the journal failed.
    pub restarts: u64,
    /// The last error of the journal.
    pub last_error: Option<String>,
    /// Versions of the saga with runs that wait for a process which has that version.
    pub other_versions: Vec<u32>,
}

/// A report in the making.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<SagaReport>);

impl Tally {
    pub(super) fn update(&self, change: impl FnOnce(&mut SagaReport)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn report(&self) -> SagaReport {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn claimed(&self, runs: usize) {
        self.update(|report| report.claimed += u64::try_from(runs).unwrap_or(u64::MAX));
    }

    pub(super) fn note(&self, ended: &Result<RunStatus, LetGo>) {
        self.update(|report| {
            let count = match ended {
                Ok(RunStatus::Complete) => &mut report.complete,
                Ok(RunStatus::Unresolved) => &mut report.unresolved,
                Ok(_) => &mut report.compensated,
                Err(LetGo::Waiting) => &mut report.waiting,
                Err(LetGo::GivenBack) => &mut report.given_back,
                Err(LetGo::Lost(reason)) => {
                    report.last_error = Some(reason.clone());
                    &mut report.lost
                }
            };
            *count += 1;
        });
    }

    /// Notes which versions wait for another process; returns whether that is news.
    pub(super) fn see_versions(&self, versions: Vec<u32>) -> bool {
        let mut news = false;
        self.update(|report| {
            news = !versions.is_empty() && report.other_versions != versions;
            report.other_versions = versions;
        });
        news
    }
}
