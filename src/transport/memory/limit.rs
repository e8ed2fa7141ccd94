//! Full queues ("Queue Length Limit").

use super::{
    broker::{LinkId, State},
    dead_letter::Reason,
    queue::{Queue, Ready},
    stored::Message,
};
use crate::topology::{Overflow, QueueKind};

/// How much may wait in a queue. What is with consumers does not count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limit {
    pub(super) messages: Option<usize>,
    /// Of the bodies.
    pub(super) bytes: Option<usize>,
}

impl Limit {
    fn is_passed_by(self, messages: usize, bytes: usize) -> bool {
        self.messages.is_some_and(|limit| messages > limit)
            || self.bytes.is_some_and(|limit| bytes > limit)
    }

    /// Whether a quorum queue that refused takes messages again: at four fifths of the limit.
    fn is_far_from(self, ready: &Ready) -> bool {
        let is_far = |limit: Option<usize>, now: usize| {
            limit.is_none_or(|limit| now <= limit.saturating_mul(4) / 5)
        };
        is_far(self.messages, ready.len()) && is_far(self.bytes, ready.bytes())
    }
}

impl Queue {
    fn is_over_its_limit(&self) -> bool {
        self.settings.limit.is_passed_by(self.ready.len(), self.ready.bytes())
    }

    /// Returns whether the queue takes one more message; with drop-head it always does.
    ///
    /// A classic queue counts at the moment of arrival, whoever publishes. A quorum queue tells
    /// its publishers to stop after it went over the limit, so it holds one more than the limit,
    /// lets them go on at four fifths of it, and takes dead letters in any case.
    pub(super) fn takes(&mut self, message: &Message, publisher: Option<LinkId>) -> bool {
        if self.settings.overflow == Overflow::DropHead {
            return true;
        }
        match (self.settings.kind, publisher) {
            (QueueKind::Classic, _) => {
                let (messages, bytes) = (self.ready.len() + 1, self.ready.bytes());
                !self.settings.limit.is_passed_by(messages, bytes + message.body.len())
            }
            (QueueKind::Quorum, None) => true,
            (QueueKind::Quorum, Some(publisher)) => {
                let is_over = self.is_over_its_limit();
                !*self.publishers.entry(publisher).or_insert(is_over)
            }
        }
    }

    /// Tells the publishers of a quorum queue to stop or to go on.
    pub(super) fn tell_publishers(&mut self) {
        if self.is_over_its_limit() {
            self.publishers.values_mut().for_each(|refused| *refused = true);
        } else if self.settings.limit.is_far_from(&self.ready) {
            self.publishers.values_mut().for_each(|refused| *refused = false);
        }
    }

    pub(super) fn forget_publisher(&mut self, publisher: LinkId) {
        self.publishers.remove(&publisher);
    }
}

impl State {
    /// Takes messages off the head of a queue that drops there, down to its limit.
    pub(super) fn trim(&mut self, name: &str) {
        while let Some(queue) = self.queues.get_mut(name) {
            if queue.settings.overflow != Overflow::DropHead || !queue.is_over_its_limit() {
                return;
            }
            let Some(message) = queue.ready.pop() else { return };
            self.bury(name, message, Reason::MaxLength);
        }
    }
}
