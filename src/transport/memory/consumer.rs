//! Consumers: who gets the next message of a queue.

use std::collections::VecDeque;

use super::{
    broker::{ChannelId, LinkId, State},
    channel::Deliveries,
    reply,
};
use crate::{
    error::{Error, Result},
    transport::Subscribe,
};

/// A consumer of a queue. It has a channel of its own, whose number names it.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) channel: ChannelId,
    exclusive: bool,
    prefetch: usize,
    unsettled: usize,
}

impl Consumer {
    fn has_room(&self) -> bool {
        self.unsettled < self.prefetch
    }
}

/// The consumers of one queue.
#[derive(Debug)]
pub(super) struct Consumers {
    /// In turn; with a single active consumer, in the order of registration.
    line: VecDeque<Consumer>,
    single_active: bool,
}

impl Consumers {
    pub(super) fn new(single_active: bool) -> Self {
        Self { line: VecDeque::new(), single_active }
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Returns whether the queue belongs to one consumer alone.
    fn in_exclusive_use(&self) -> bool {
        self.line.iter().any(|consumer| consumer.exclusive)
    }

    /// Picks the consumer of the next message and counts the message as unsettled.
    ///
    /// Consumers with room get messages in turn ("Consumer Prefetch"). With a single active
    /// consumer the one registered first gets all, however full it is ("Single Active Consumer").
    fn take_turn(&mut self) -> Option<ChannelId> {
        let turn = if self.single_active {
            self.line.front().filter(|first| first.has_room()).map(|_| 0)
        } else {
            self.line.iter().position(Consumer::has_room)
        }?;
        let mut consumer = self.line.remove(turn)?;
        consumer.unsettled += 1;
        let channel = consumer.channel;
        if self.single_active {
            self.line.push_front(consumer);
        } else {
            self.line.push_back(consumer);
        }
        Some(channel)
    }

    /// Gives a consumer room again. `false` if it is cancelled.
    pub(super) fn settled(&mut self, channel: ChannelId) -> bool {
        let consumer = self.line.iter_mut().find(|consumer| consumer.channel == channel);
        consumer.is_some_and(|consumer| {
            consumer.unsettled = consumer.unsettled.saturating_sub(1);
            true
        })
    }

    /// Removes a consumer. `false` if it is not there.
    fn remove(&mut self, channel: ChannelId) -> bool {
        let before = self.line.len();
        self.line.retain(|consumer| consumer.channel != channel);
        self.line.len() < before
    }

    pub(super) fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.line.iter().map(|consumer| consumer.channel)
    }
}

impl State {
    /// Registers a consumer on a new channel and starts delivering.
    pub(super) fn subscribe(
        &mut self,
        link: LinkId,
        request: &Subscribe,
    ) -> Result<(ChannelId, Deliveries)> {
        self.check_open(link)?;
        if let Some((argument, _)) = request.arguments.iter().next() {
            return Err(reply::unsupported(format!("consumer argument `{argument}`")));
        }
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
        let consumer = Consumer { channel, exclusive, prefetch, unsettled: 0 };
        if let Some(queue) = self.queues.get_mut(&request.queue) {
            queue.consumers.line.push_back(consumer);
        }
        self.refresh(&request.queue);
        Ok((channel, deliveries))
    }

    /// Brings a queue up to date after any change: expires its head, delivers what can be
    /// delivered, and notes when it needs attention next.
    pub(super) fn refresh(&mut self, name: &str) {
        loop {
            self.expire_heads(name);
            if !self.deliver_next(name) {
                break;
            }
        }
        if let Some(queue) = self.queues.get_mut(name) {
            queue.tell_publishers();
        }
        self.schedule(name);
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
    ///
    /// A classic queue with a single active consumer does not turn to the next one here: that
    /// waits for the next event that makes the queue deliver, which the closing of the consumer's
    /// channel is at the latest. RabbitMQ 3.10 does it that way.
    pub(super) fn remove_consumer(&mut self, channel: ChannelId, name: &str) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(name) else { return };
        if !queue.consumers.remove(channel) {
            return;
        }
        queue.used_at = now;
        if queue.declared.auto_delete && queue.consumers.is_empty() {
            self.remove_queue(name);
        } else if queue.is_quorum() {
            self.refresh(name);
        } else {
            self.schedule(name);
        }
    }

    /// Stops the deliveries of a subscription; what was sent stays with it.
    pub(super) fn cancel(&mut self, channel: ChannelId) -> Result<()> {
        let Some(open) = self.channels.get_mut(&channel) else {
            return Err(reply::channel_closed());
        };
        open.deliveries = None;
        if let Some((queue, _)) = open.consumes.clone().filter(|own| self.is_current(own)) {
            self.remove_consumer(channel, &queue);
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
