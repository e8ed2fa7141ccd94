//! One queue: what waits in it, and who consumes it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, VecDeque},
};

use tokio::time::Instant;

use super::{
    broker::{ChannelId, LinkId, QueueId},
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
    /// How many of its messages each channel has and did not settle.
    pub(super) unsettled: BTreeMap<ChannelId, usize>,
    /// When it was last used, as `x-expires` counts it.
    pub(super) used_at: Instant,
    /// The entry it has in the broker's timetable.
    pub(super) scheduled: Option<Instant>,
    /// The publishers of a limited quorum queue, and whether each is being refused.
    pub(super) publishers: HashMap<LinkId, bool>,
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
        let consumers = Consumers::new(&settings);
        Self {
            id,
            declared,
            settings,
            ready: Ready::default(),
            consumers,
            unsettled: BTreeMap::new(),
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
        let is_used =
            !self.consumers.is_empty() || (self.is_quorum() && !self.unsettled.is_empty());
        let expires = self.settings.expires.filter(|_| !is_used)?;
        Some(self.used_at + expires)
    }

    /// Notes that a channel settled a message, or lost it.
    pub(super) fn taken_back(&mut self, channel: ChannelId) {
        if let Some(left) = self.unsettled.get_mut(&channel) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.unsettled.remove(&channel);
            }
        }
    }
}

/// The messages that wait for a consumer, in the order in which they will be delivered.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Returned to a quorum queue; delivered before everything else, in the order of return.
    returned: VecDeque<Stored>,
    /// By priority, the highest first, and position.
    waiting: BTreeMap<(Reverse<u8>, u64), Stored>,
    next_position: u64,
    /// Of all bodies.
    bytes: usize,
}

impl Ready {
    /// Adds a message at the end of its priority.
    pub(super) fn push(&mut self, mut message: Stored) {
        message.position = self.next_position;
        self.next_position += 1;
        self.put_back(message);
    }

    /// Puts a message back where it was, as a classic queue does.
    pub(super) fn put_back(&mut self, message: Stored) {
        self.bytes += message.message.body.len();
        self.waiting.insert((Reverse(message.priority), message.position), message);
    }

    /// Puts a message behind the other returned ones and before the rest, as a quorum queue does.
    pub(super) fn give_back(&mut self, message: Stored) {
        self.bytes += message.message.body.len();
        self.returned.push_back(message);
    }

    pub(super) fn head(&self) -> Option<&Stored> {
        self.returned.front().or_else(|| Some(self.waiting.first_key_value()?.1))
    }

    pub(super) fn pop(&mut self) -> Option<Stored> {
        let message = self.returned.pop_front().or_else(|| Some(self.waiting.pop_first()?.1))?;
        self.bytes -= message.message.body.len();
        Some(message)
    }

    pub(super) fn len(&self) -> usize {
        self.returned.len() + self.waiting.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
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
        self.bytes = self.iter().map(|message| message.message.body.len()).sum();
    }
}
