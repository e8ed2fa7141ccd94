//! Consumers: who gets the next message of a queue.

use std::collections::VecDeque;

use super::{
    broker::{ChannelId, LinkId, State},
    channel::Deliveries,
    queue::Queue,
    reply,
    settings::Settings,
    stored::type_name,
};
use crate::{
    error::{Error, Result},
    topology::QueueKind,
    transport::Subscribe,
};

/// A consumer of a queue. It has a channel of its own, whose number names it.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) channel: ChannelId,
    exclusive: bool,
    priority: i64,
    prefetch: usize,
    unsettled: usize,
}

impl Consumer {
    fn has_room(&self) -> bool {
        self.unsettled < self.prefetch
    }
}

/// The consumers of one queue.
///
/// Those with room get messages in turn ("Consumer Prefetch"), higher priorities first ("Consumer
/// Priorities"). One that has none leaves the line, and comes back to its end. A quorum queue takes
/// it out with the message that fills it, a classic queue not before its next turn.
#[derive(Debug)]
pub(super) struct Consumers {
    /// By priority and in turn. With a single active consumer, the active one, then those who
    /// wait for its place.
    line: VecDeque<Consumer>,
    /// Found full. None with a single active consumer.
    full: Vec<Consumer>,
    single_active: bool,
    kind: QueueKind,
}

impl Consumers {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            line: VecDeque::new(),
            full: Vec::new(),
            single_active: settings.single_active,
            kind: settings.kind,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.line.len() + self.full.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the queue belongs to one consumer alone.
    fn in_exclusive_use(&self) -> bool {
        self.line.iter().chain(&self.full).any(|consumer| consumer.exclusive)
    }

    fn add(&mut self, consumer: Consumer) {
        if self.single_active && self.kind == QueueKind::Quorum {
            // Priorities do not count here in RabbitMQ 3.10.
            self.line.push_back(consumer);
        } else {
            self.line_up(consumer);
        }
    }

    /// Puts a consumer behind those of its priority; never before an active one.
    fn line_up(&mut self, consumer: Consumer) {
        let first = usize::from(self.single_active).min(self.line.len());
        let behind = |other: &Consumer| other.priority >= consumer.priority;
        let before = self.line.iter().skip(first).take_while(|other| behind(other)).count();
        self.line.insert(first + before, consumer);
    }

    /// Picks the consumer of the next message and counts the message as unsettled.
    fn take_turn(&mut self) -> Option<ChannelId> {
        if self.single_active {
            // All go to the first, however full it is ("Single Active Consumer").
            let active = self.line.front_mut().filter(|active| active.has_room())?;
            active.unsettled += 1;
            return Some(active.channel);
        }
        while let Some(mut next) = self.line.pop_front() {
            if !next.has_room() {
                self.full.push(next);
                continue;
            }
            next.unsettled += 1;
            let channel = next.channel;
            if next.has_room() || self.kind == QueueKind::Classic {
                self.line_up(next);
            } else {
                self.full.push(next);
            }
            return Some(channel);
        }
        None
    }

    /// Gives a consumer room again. `false` if it is cancelled.
    pub(super) fn settled(&mut self, channel: ChannelId) -> bool {
        let is_it = |consumer: &Consumer| consumer.channel == channel;
        if let Some(at) = self.full.iter().position(is_it) {
            let mut consumer = self.full.swap_remove(at);
            consumer.unsettled = consumer.unsettled.saturating_sub(1);
            self.line_up(consumer);
            return true;
        }
        let consumer = self.line.iter_mut().find(|consumer| is_it(consumer));
        consumer.is_some_and(|consumer| {
            consumer.unsettled = consumer.unsettled.saturating_sub(1);
            true
        })
    }

    /// Lets a consumer have one more at a time, for good.
    ///
    /// RabbitMQ 3.10 gives the room of a message that dies of its delivery limit back twice.
    pub(super) fn widen(&mut self, channel: ChannelId) {
        let all = self.line.iter_mut().chain(&mut self.full);
        if let Some(consumer) = all.into_iter().find(|consumer| consumer.channel == channel) {
            consumer.prefetch = consumer.prefetch.saturating_add(1);
        }
    }

    /// Returns how many consumers RabbitMQ counts: in a quorum queue with a single active consumer
    /// it leaves out those that wait for its place.
    pub(super) fn counted(&self) -> usize {
        if self.single_active && self.kind == QueueKind::Quorum {
            self.len().min(1)
        } else {
            self.len()
        }
    }

    /// Removes a consumer. `false` if it is not there.
    fn remove(&mut self, channel: ChannelId) -> bool {
        let before = self.len();
        self.line.retain(|consumer| consumer.channel != channel);
        self.full.retain(|consumer| consumer.channel != channel);
        self.len() < before
    }

    pub(super) fn contains(&self, channel: ChannelId) -> bool {
        self.channels().any(|other| other == channel)
    }

    pub(super) fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.line.iter().chain(&self.full).map(|consumer| consumer.channel)
    }
}

/// Reads a consumer's arguments: its priority, from any integer, else 0.
fn priority_of(request: &Subscribe) -> Result<i64> {
    let name = "x-priority";
    if let Some((other, _)) = request.arguments.iter().find(|(argument, _)| *argument != name) {
        return Err(reply::unsupported(format!("consumer argument `{other}`")));
    }
    let Some(value) = request.arguments.get(name) else { return Ok(0) };
    value.as_i64().ok_or_else(|| {
        let problem = format!("\"expected integer, got {}\"", type_name(value));
        reply::invalid_argument(name, &request.queue, problem)
    })
}

impl State {
    /// Registers a consumer on a new channel and starts delivering.
    pub(super) fn subscribe(
        &mut self,
        link: LinkId,
        request: &Subscribe,
    ) -> Result<(ChannelId, Deliveries)> {
        self.check_open(link)?;
        let priority = priority_of(request)?;
        self.check_owner(link, &request.queue)?;
        let Some(queue) = self.queues.get(&request.queue) else {
            return Err(reply::no_queue(&request.queue));
        };
        // A quorum queue accepts the flag and does not enforce it (RabbitMQ 3.10).
        let exclusive = request.exclusive && !queue.is_quorum();
        if queue.consumers.in_exclusive_use()
            || (exclusive && (!queue.consumers.is_empty() || queue.settings.single_active))
        {
            let what = format!("queue '{}' in vhost '/' in exclusive use", request.queue);
            return Err(reply::access_refused(what));
        }
        let id = queue.id;
        let (channel, deliveries) = self.open_consuming_channel(link, &request.queue, id);
        let prefetch = usize::from(request.prefetch.max(1));
        let consumer = Consumer { channel, exclusive, priority, prefetch, unsettled: 0 };
        if let Some(queue) = self.queues.get_mut(&request.queue) {
            queue.consumers.add(consumer);
        }
        self.refresh(&request.queue);
        Ok((channel, deliveries))
    }

    /// Brings a queue up to date after any change: expires its head, delivers what can be
    /// delivered, and notes when it needs attention next.
    pub(super) fn refresh(&mut self, name: &str) {
        if self.queues.get(name).is_some_and(Queue::is_quorum) {
            self.work_off_quorum(name);
        } else {
            self.trim(name);
            self.expire_and_deliver(name);
        }
        if let Some(queue) = self.queues.get_mut(name) {
            queue.tell_publishers();
        }
        self.schedule(name);
    }

    /// A quorum queue drops what is over its limit after it delivered, a classic queue before. What
    /// expired behind a message that it dropped is an operation of its own.
    fn work_off_quorum(&mut self, name: &str) {
        let mut start = self.dead_before.min(self.dead.len());
        loop {
            self.expire_and_deliver(name);
            let before = self.dead.len();
            self.trim(name);
            if self.dead.len() > before {
                // What a quorum queue of RabbitMQ 3.10 drops in one operation it sends the last
                // first, and before all else that died in it.
                let dropped = self.dead.split_off(before);
                let others = self.dead.split_off(start);
                self.dead.extend(dropped.into_iter().rev().chain(others));
            }
            start = self.dead.len();
            let now = self.now;
            let head = self.queues.get(name).and_then(|queue| queue.ready.head());
            if head.and_then(|head| head.expires).is_none_or(|at| at > now) {
                return;
            }
        }
    }

    fn expire_and_deliver(&mut self, name: &str) {
        loop {
            self.expire_heads(name);
            if !self.deliver_next(name) {
                return;
            }
        }
    }

    /// Delivers the head of a queue, whether it is expired or not, to the next consumer in turn.
    pub(super) fn deliver_next(&mut self, name: &str) -> bool {
        let Some(queue) = self.queues.get_mut(name) else { return false };
        if queue.ready.is_empty() {
            return false;
        }
        let Some(channel) = queue.consumers.take_turn() else { return false };
        let Some(message) = queue.ready.pop() else { return false };
        self.deliver(channel, name, message);
        true
    }

    /// Takes a consumer off its queue, which deletes an auto-deleted queue that it leaves without
    /// any ("Temporary Queues").
    pub(super) fn detach_consumer(&mut self, channel: ChannelId, name: &str) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(name) else { return };
        if !queue.consumers.remove(channel) {
            return;
        }
        queue.used_at = now;
        if queue.declared.auto_delete && queue.consumers.is_empty() {
            self.remove_queue(name);
        } else {
            self.schedule(name);
        }
    }

    /// Stops the deliveries of a subscription; what was sent stays with it.
    ///
    /// A classic queue with a single active consumer does not turn to the next one here: that
    /// waits for the next event that makes the queue deliver, which the closing of the consumer's
    /// channel is at the latest. RabbitMQ 3.10 does it that way.
    pub(super) fn cancel(&mut self, channel: ChannelId) -> Result<()> {
        let Some(open) = self.channels.get_mut(&channel) else {
            return Err(reply::channel_closed());
        };
        open.deliveries = None;
        if let Some((queue, _)) = open.consumes.clone().filter(|own| self.is_current(own)) {
            self.detach_consumer(channel, &queue);
            if self.queues.get(&queue).is_some_and(Queue::is_quorum) {
                self.refresh(&queue);
            }
        }
        Ok(())
    }

    /// Tells the consumers of a queue that it is gone.
    pub(super) fn end_consumers(&mut self, consumers: &Consumers, error: impl Fn() -> Error) {
        for channel in consumers.channels() {
            if let Some(deliveries) =
                self.channels.get_mut(&channel).and_then(|channel| channel.deliveries.take())
            {
                // Nobody may be listening any more.
                let _ = deliveries.send(Err(error()));
            }
        }
    }
}
