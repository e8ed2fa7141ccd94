//! What a scheduler counts.

use crate::consume::Counter;

/// Counts since a scheduler was started, of this process only: what one process schedules another
/// one may deliver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Messages scheduled, those that were due at once included.
    pub scheduled: u64,
    /// Publishes into a rung, the first of each message included. Long delays take many with the
    /// family's ladder: that is how it works, not a fault.
    pub hops: u64,
    /// Messages delivered to their target.
    pub delivered: u64,
    /// Messages dead-lettered: malformed, or with a target that does not exist.
    pub failed: u64,
}

/// The live counters behind [`SchedulerStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) scheduled: Counter,
    pub(super) hops: Counter,
    pub(super) delivered: Counter,
    pub(super) failed: Counter,
}

impl Counters {
    pub(super) fn snapshot(&self) -> SchedulerStats {
        SchedulerStats {
            scheduled: self.scheduled.get(),
            hops: self.hops.get(),
            delivered: self.delivered.get(),
            failed: self.failed.get(),
        }
    }
}
