//! How a replay went.

use crate::error::Error;

/// What a replay has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayProgress {
    /// Messages whose copy the broker confirmed. In a dry run: that would have been moved.
    pub moved: u64,
    /// Messages that the filters declined; they kept their places.
    pub skipped: u64,
    /// Messages that were handled before, as the idempotency store says; they kept their places.
    /// See [`ReplayBuilder::releasing`](super::ReplayBuilder::releasing).
    pub already_done: u64,
}

/// How a replay ended, and what it had done by then.
#[derive(Debug)]
#[must_use = "a replay that failed half way says so here"]
pub struct ReplayReport {
    pub(super) done: ReplayProgress,
    pub(super) ended: ReplayEnd,
}

impl ReplayReport {
    /// Returns how many messages were moved; in a dry run, how many would have been.
    ///
    /// A copy whose confirm never came is not counted, though it may have been published: the
    /// [error](Self::error) says so.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.done.moved
    }

    /// Returns how many messages the filters declined. They kept their places.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.done.skipped
    }

    /// Returns how many messages were handled before, as the idempotency store says. They kept
    /// their places.
    #[must_use]
    pub fn already_done(&self) -> u64 {
        self.done.already_done
    }

    /// Returns why the replay ended.
    #[must_use]
    pub fn ended(&self) -> &ReplayEnd {
        &self.ended
    }

    /// Returns whether the replay looked at every message.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        matches!(self.ended, ReplayEnd::Drained)
    }

    /// Returns what the replay failed of.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        match &self.ended {
            ReplayEnd::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a replay ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplayEnd {
    /// Every message was looked at.
    Drained,
    /// As many messages were moved as [`limit`](super::ReplayBuilder::limit) allows.
    Limit,
    /// The time of [`within`](super::ReplayBuilder::within) was over.
    Deadline,
    /// As many messages are held as [`hold_at_most`](super::ReplayBuilder::hold_at_most) allows.
    HoldLimit,
    /// A message that this replay moved is back: what it failed of is not repaired. The messages
    /// behind it were not looked at; in a queue without priorities they came later than it.
    FailedAgain {
        /// The id of the message, which kept its new place.
        id: String,
    },
    /// The handle was closed.
    Cancelled,
    /// A message could not be moved, or the queue not be read. The message kept its place.
    Failed(Error),
}
