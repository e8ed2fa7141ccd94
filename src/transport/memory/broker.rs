//! The broker: one synchronous state machine behind one lock.
//!
//! Every operation takes the lock, lets the time that passed take effect, acts, and lets go; none
//! waits while it holds it. What others wait for (deliveries, confirms, a link's status) reaches
//! them through channels. So the rules read top to bottom in plain code, and the order of events
//! is the order in which the lock was taken.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use tokio::{sync::watch, time::Instant};

use super::{
    channel::{Channel, QueueRef},
    dead_letter::DeadLetter,
    exchange::Exchange,
    link::OpenLink,
    queue::Queue,
};
use crate::{clock::Clock, topology::Destination};

/// The number of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LinkId(pub(super) u64);

/// The number of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ChannelId(pub(super) u64);

/// The number of a queue, which a later queue of the same name does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueId(pub(super) u64);

/// A broker that transports, links and handles share.
#[derive(Debug)]
pub(super) struct Broker {
    /// Empty for a private one.
    pub(super) name: String,
    state: Mutex<State>,
    /// When something is due next, for the timers.
    deadline: watch::Sender<Option<Instant>>,
    clock: OnceLock<Clock>,
}

impl Broker {
    pub(super) fn new(name: &str) -> Arc<Self> {
        Arc::new_cyclic(|broker| Self {
            name: name.to_owned(),
            state: Mutex::new(State::new(broker.clone())),
            deadline: watch::Sender::new(None),
            clock: OnceLock::new(),
        })
    }

    /// Returns the broker's clock, which starts with its first use: a named broker may be created
    /// outside of a runtime, where tokio's clock is not the one that tests pause.
    pub(super) fn clock(&self) -> &Clock {
        self.clock.get_or_init(Clock::tokio)
    }

    pub(super) fn deadline(&self) -> watch::Receiver<Option<Instant>> {
        self.deadline.subscribe()
    }

    /// Runs an operation on the state, as of now.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = Instant::now();
        state.epoch_seconds = u64::try_from(self.clock().now().timestamp()).unwrap_or_default();
        state.catch_up();
        let result = act(&mut state);
        state.catch_up();
        let next = state.timetable.first().map(|(at, _)| *at);
        self.deadline.send_if_modified(|known| std::mem::replace(known, next) != next);
        result
    }
}

/// Everything the broker knows.
#[derive(Debug)]
pub(super) struct State {
    /// For the deliveries it hands out.
    pub(super) broker: Weak<Broker>,
    /// The time of the current operation.
    pub(super) now: Instant,
    pub(super) epoch_seconds: u64,
    pub(super) exchanges: BTreeMap<String, Exchange>,
    /// The other end of each binding: exchange and key, by what they lead to.
    pub(super) sources: BTreeMap<Destination, BTreeSet<(String, String)>>,
    pub(super) queues: BTreeMap<String, Queue>,
    pub(super) links: BTreeMap<LinkId, OpenLink>,
    pub(super) channels: BTreeMap<ChannelId, Channel>,
    /// Which queue needs attention when. A queue has at most one entry.
    pub(super) timetable: BTreeSet<(Instant, String)>,
    /// On their way between queues.
    pub(super) dead: VecDeque<DeadLetter>,
    /// How many of them were on their way before the current operation.
    pub(super) dead_before: usize,
    /// Why publishing is blocked.
    pub(super) alarm: Option<String>,
    pub(super) confirms_held: bool,
    pub(super) connections_refused: bool,
    last_id: u64,
}

impl State {
    fn new(broker: Weak<Broker>) -> Self {
        Self {
            broker,
            now: Instant::now(),
            epoch_seconds: 0,
            exchanges: Exchange::predeclared(),
            sources: BTreeMap::new(),
            queues: BTreeMap::new(),
            links: BTreeMap::new(),
            channels: BTreeMap::new(),
            timetable: BTreeSet::new(),
            dead: VecDeque::new(),
            dead_before: 0,
            alarm: None,
            confirms_held: false,
            connections_refused: false,
            last_id: 0,
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns a queue, if it is still the same one.
    pub(super) fn current(&mut self, (name, id): &QueueRef) -> Option<&mut Queue> {
        self.queues.get_mut(name).filter(|queue| queue.id == *id)
    }

    pub(super) fn is_current(&self, (name, id): &QueueRef) -> bool {
        self.queues.get(name).is_some_and(|queue| queue.id == *id)
    }

    /// Lets everything happen that is due by now, and what follows from it.
    fn catch_up(&mut self) {
        loop {
            self.route_dead_letters();
            let due = self.timetable.first().is_some_and(|(at, _)| *at <= self.now);
            if !due {
                return;
            }
            let Some((_, name)) = self.timetable.pop_first() else { return };
            self.attend(&name);
        }
    }

    /// Does what a queue's deadline was for.
    fn attend(&mut self, name: &str) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(name) else { return };
        queue.scheduled = None;
        if queue.unused_deadline().is_some_and(|at| at <= now) {
            self.remove_queue(name);
        } else {
            self.refresh(name);
        }
    }

    /// Notes when a queue needs attention next.
    pub(super) fn schedule(&mut self, name: &str) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        let next = queue.deadline();
        let known = std::mem::replace(&mut queue.scheduled, next);
        if known == next {
            return;
        }
        if let Some(at) = known {
            self.timetable.remove(&(at, name.to_owned()));
        }
        if let Some(at) = next {
            self.timetable.insert((at, name.to_owned()));
        }
    }
}
