//! One queue: what waits in it, and who consumes it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::time::Instant;

use super::{
    broker::{LinkId, QueueId},
    consumer::Consumers,
    settings::Settings,
    stored::Stored,
};
use crate::{message::Headers, topology::QueueKind};

/// A queue that exists.
#[derive(Debug)]
pub(super) struct Queue {
    /// Tells it from a later queue of the same name.
    pub(super) id: QueueId,
    pub(super) declared: Declared,
    pub(super) settings: Settings,
    pub(super) ready: Ready,
    pub(super) consumers: Consumers,
    /// When it was last used, as `x-expires` counts it.
    pub(super) used_at: Instant,
    /// The entry it has in the broker's timetable.
    pub(super) scheduled: Option<Instant>,
    /// The publishers of a limited quorum queue, and whether each is being refused.
    publishers: HashMap<LinkId, bool>,
}

/// What a later declaration is compared with.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    /// The connection that an exclusive queue belongs to.
    pub(super) owner: Option<LinkId>,
    pub(super) arguments: Headers,
}

impl Queue {
    pub(super) fn new(id: QueueId, declared: Declared, settings: Settings, now: Instant) -> Self {
        let consumers = Consumers::new(settings.single_active);
        Self {
            id,
            declared,
            settings,
            ready: Ready::default(),
            consumers,
            used_at: now,
            scheduled: None,
            publishers: HashMap::new(),
        }
    }

    pub(super) fn is_quorum(&self) -> bool {
        self.settings.kind == QueueKind::Quorum
    }

    /// Returns when something happens to this queue by itself: its head expires, or it does.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let head = self.ready.head().and_then(|message| message.expires);
        head.into_iter().chain(self.unused_deadline()).min()
    }

    /// Returns when the queue goes if nobody uses it ("Queue TTL").
    pub(super) fn unused_deadline(&self) -> Option<Instant> {
        let expires = self.settings.expires.filter(|_| self.consumers.is_empty())?;
        Some(self.used_at + expires)
    }

    /// Returns whether the queue takes one more message under `reject-publish`.
    ///
    /// A classic queue counts at the moment of arrival, whoever publishes. A quorum queue tells
    /// its publishers to stop after it went over the limit, so it holds one more than the limit,
    /// lets them go on at four fifths of it, and takes dead letters in any case.
    pub(super) fn takes_from(&mut self, publisher: Option<LinkId>) -> bool {
        let Some(limit) = self.settings.max_length else { return true };
        let waiting = self.ready.len();
        match (self.settings.kind, publisher) {
            (QueueKind::Classic, _) => waiting < limit,
            (QueueKind::Quorum, None) => true,
            (QueueKind::Quorum, Some(publisher)) => {
                !*self.publishers.entry(publisher).or_insert(waiting > limit)
            }
        }
    }

    /// Tells the publishers of a quorum queue to stop or to go on.
    pub(super) fn tell_publishers(&mut self) {
        let Some(limit) = self.settings.max_length else { return };
        let waiting = self.ready.len();
        if waiting > limit {
            self.publishers.values_mut().for_each(|refused| *refused = true);
        } else if waiting <= limit.saturating_mul(4) / 5 {
            self.publishers.values_mut().for_each(|refused| *refused = false);
        }
    }

    pub(super) fn forget_publisher(&mut self, publisher: LinkId) {
        self.publishers.remove(&publisher);
    }
}

/// The messages that wait for a consumer, in the order in which they will be delivered.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Returned to a quorum queue; delivered before everything else, in the order of return.
    returned: VecDeque<Stored>,
    /// By position.
    waiting: BTreeMap<u64, Stored>,
    next_position: u64,
}

impl Ready {
    /// Adds a message at the end.
    pub(super) fn push(&mut self, mut message: Stored) {
        message.position = self.next_position;
        self.next_position += 1;
        self.waiting.insert(message.position, message);
    }

    /// Puts a message back where it was, as a classic queue does.
    pub(super) fn put_back(&mut self, message: Stored) {
        self.waiting.insert(message.position, message);
    }

    /// Puts a message behind the other returned ones and before the rest, as a quorum queue does.
    pub(super) fn give_back(&mut self, message: Stored) {
        self.returned.push_back(message);
    }

    pub(super) fn head(&self) -> Option<&Stored> {
        self.returned.front().or_else(|| Some(self.waiting.first_key_value()?.1))
    }

    pub(super) fn pop(&mut self) -> Option<Stored> {
        self.returned.pop_front().or_else(|| Some(self.waiting.pop_first()?.1))
    }

    pub(super) fn len(&self) -> usize {
        self.returned.len() + self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stored> {
        self.returned.iter().chain(self.waiting.values())
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Stored) -> bool) {
        self.returned.retain(&keep);
        self.waiting.retain(|_, message| keep(message));
    }
}
