//! What becomes of a record after its publish: decided here, carried out by the engine.

use std::time::Duration;

use super::options::RelayOptions;
use crate::{
    outbox::{ClaimedRecord, FailedPublish},
    telemetry::metric::{OUTBOX_LAG, OUTBOX_TOTAL},
};

/// What is to be written down about one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The broker has it.
    Published,
    /// It failed by itself.
    Failed(FailedPublish),
    /// Nothing can be said about it: given back with no attempt spent.
    Release {
        /// The outage, where this record met it.
        reason: Option<String>,
        delay: Duration,
    },
}

impl Outcome {
    /// Counts the outcome of a record that was added this long ago.
    pub(super) fn count(&self, age: Duration) {
        let outcome = match self {
            Self::Published => "published",
            Self::Failed(_) => "failed",
            Self::Release { .. } => return,
        };
        metrics::counter!(OUTBOX_TOTAL, "outcome" => outcome).increment(1);
        metrics::histogram!(OUTBOX_LAG, "outcome" => outcome).record(age);
    }
}

/// Decides about a record that failed by itself: an attempt spent, and retired after the last.
pub(super) fn judge(record: &ClaimedRecord, reason: &str, options: &RelayOptions) -> Outcome {
    let spent = record.attempts().saturating_add(1);
    let (seq, id) = (record.seq(), record.record().id());
    if spent >= options.max_attempts {
        tracing::error!(id, attempts = spent, reason, "an outbox record is retired");
        return Outcome::Failed(FailedPublish::retire(seq, reason));
    }
    if spent == 1 {
        tracing::warn!(id, reason, "an outbox record could not be published; it is tried again");
    }
    Outcome::Failed(FailedPublish::retry(seq, reason, options.retry_delay.after(spent)))
}

/// The outcomes of a batch that are not written down yet.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    pub(super) published: Vec<i64>,
    pub(super) failed: Vec<FailedPublish>,
    /// By delay: at most two in practice.
    pub(super) released: Vec<(Duration, Vec<i64>)>,
    pub(super) last_error: Option<String>,
}

impl Outcomes {
    pub(super) fn add(&mut self, seq: i64, outcome: Outcome) {
        match outcome {
            Outcome::Published => self.published.push(seq),
            Outcome::Failed(failure) => {
                self.last_error = Some(failure.reason().to_owned());
                self.failed.push(failure);
            }
            Outcome::Release { reason, delay } => {
                self.last_error = reason.or(self.last_error.take());
                match self.released.iter_mut().find(|(of, _)| *of == delay) {
                    Some((_, seqs)) => seqs.push(seq),
                    None => self.released.push((delay, vec![seq])),
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.published.is_empty() && self.failed.is_empty() && self.released.is_empty()
    }

    pub(super) fn seqs(&self) -> impl Iterator<Item = i64> {
        let failed = self.failed.iter().map(FailedPublish::seq);
        let released = self.released.iter().flat_map(|(_, seqs)| seqs.iter().copied());
        self.published.iter().copied().chain(failed).chain(released)
    }
}
