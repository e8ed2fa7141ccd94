//! Channels: who has which unsettled delivery, and what settling it does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Weak,
};

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::mpsc;

use super::{
    broker::{Broker, ChannelId, LinkId, QueueId, State},
    dead_letter::Reason,
    queue::Queue,
    reply,
    stored::Stored,
};
use crate::{
    error::{Error, Result},
    message::HeaderValue,
    transport::{Delivery, Settle},
};

/// The receiving end of a subscription.
pub(super) type Deliveries = mpsc::UnboundedReceiver<Result<Delivery>>;

/// A queue of one life: its name and number.
pub(super) type QueueRef = (String, QueueId);

/// An open channel.
#[derive(Debug)]
pub(super) struct Channel {
    link: LinkId,
    /// The queue of its consumer, kept after the consumer is cancelled.
    pub(super) consumes: Option<QueueRef>,
    /// Where its consumer's deliveries go, until that is cancelled.
    pub(super) deliveries: Option<mpsc::UnboundedSender<Result<Delivery>>>,
    /// By delivery tag.
    unsettled: BTreeMap<u64, Unsettled>,
    last_tag: u64,
}

#[cfg(all(test, feature = "rabbitmq"))]
impl Channel {
    /// What it did not settle.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Stored> {
        self.unsettled.values().map(|unsettled| &unsettled.message)
    }
}

#[derive(Debug)]
struct Unsettled {
    queue: QueueRef,
    message: Stored,
}

/// What a consumer says about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ack,
    Requeue,
    Reject,
}

/// How a message comes back to its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    /// Asked for by a nack.
    Requeued,
    /// Its channel closed.
    Abandoned,
}

impl State {
    pub(super) fn open_channel(&mut self, link: LinkId) -> Result<ChannelId> {
        self.check_open(link)?;
        Ok(self.insert_channel(link, None, None))
    }

    pub(super) fn open_consuming_channel(
        &mut self,
        link: LinkId,
        queue: &str,
        id: QueueId,
    ) -> (ChannelId, Deliveries) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (self.insert_channel(link, Some((queue.to_owned(), id)), Some(sender)), receiver)
    }

    fn insert_channel(
        &mut self,
        link: LinkId,
        consumes: Option<QueueRef>,
        deliveries: Option<mpsc::UnboundedSender<Result<Delivery>>>,
    ) -> ChannelId {
        let id = ChannelId(self.next_id());
        let channel =
            Channel { link, consumes, deliveries, unsettled: BTreeMap::new(), last_tag: 0 };
        self.channels.insert(id, channel);
        id
    }

    /// Takes the next message of a queue for a channel that pulls.
    pub(super) fn take(&mut self, channel: ChannelId, name: &str) -> Result<Option<Delivery>> {
        let Some(link) = self.channels.get(&channel).map(|channel| channel.link) else {
            return Err(reply::channel_closed());
        };
        self.check_owner(link, name)?;
        let now = self.now;
        let queue = self.queues.get_mut(name).ok_or_else(|| reply::no_queue(name))?;
        if queue.is_quorum() && queue.settings.single_active {
            return Err(reply::no_get_with_single_active(name));
        }
        queue.used_at = now;
        let message = queue.ready.pop();
        let delivery = message.and_then(|message| self.hand_out(channel, name, message, true));
        self.refresh(name);
        Ok(delivery)
    }

    /// Sends a message to the consumer of a channel.
    pub(super) fn deliver(&mut self, channel: ChannelId, queue: &str, message: Stored) {
        let Some(delivery) = self.hand_out(channel, queue, message, false) else { return };
        if let Some(deliveries) =
            self.channels.get(&channel).and_then(|channel| channel.deliveries.as_ref())
        {
            // A consumer that dropped its stream keeps the message unsettled until it closes.
            let _ = deliveries.send(Ok(delivery));
        }
    }

    /// Makes a delivery of a message and notes it as unsettled.
    fn hand_out(
        &mut self,
        channel: ChannelId,
        name: &str,
        message: Stored,
        pulled: bool,
    ) -> Option<Delivery> {
        let queue = self.queues.get_mut(name)?;
        let open = self.channels.get_mut(&channel)?;
        *queue.unsettled.entry(channel).or_default() += 1;
        open.last_tag += 1;
        let tag = open.last_tag;
        let mut properties = message.message.properties.clone();
        // RabbitMQ 3.10 gives a first delivery the header only when it is pulled.
        if queue.is_quorum() && (pulled || message.returns > 0) {
            let returns = HeaderValue::Long(i64::from(message.returns));
            properties.headers.insert("x-delivery-count", returns);
        }
        let delivery = Delivery {
            exchange: message.message.exchange.clone(),
            routing_key: message.message.routing_key().to_owned(),
            redelivered: message.returns > 0,
            properties,
            body: message.message.body.clone(),
            settle: Box::new(MemorySettle { broker: self.broker.clone(), channel, tag }),
        };
        let queue = (name.to_owned(), queue.id);
        open.unsettled.insert(tag, Unsettled { queue, message });
        Some(delivery)
    }

    /// Settles a delivery of an open channel.
    fn settle(&mut self, channel: ChannelId, tag: u64, verdict: Verdict) -> Result<()> {
        let now = self.now;
        let open = self.channels.get_mut(&channel).ok_or_else(reply::channel_closed)?;
        let Some(Unsettled { queue: of, message }) = open.unsettled.remove(&tag) else {
            return Ok(());
        };
        // The queue may be deleted: its messages went with it.
        let Some(queue) = self.current(&of) else { return Ok(()) };
        queue.taken_back(channel);
        let has_room_again = queue.consumers.settled(channel);
        if queue.is_quorum() {
            queue.used_at = now;
        }
        match verdict {
            Verdict::Ack => {}
            Verdict::Requeue => {
                if queue.is_quorum() && queue.settings.is_last_return(message.returns) {
                    queue.consumers.widen(channel);
                }
                self.give_back(&of.0, message, Return::Requeued);
            }
            Verdict::Reject => self.bury(&of.0, message, Reason::Rejected),
        }
        if has_room_again || verdict == Verdict::Requeue {
            self.refresh(&of.0);
        } else {
            self.schedule(&of.0);
        }
        Ok(())
    }

    /// Requeues everything that a channel has.
    pub(super) fn requeue_all(&mut self, channel: ChannelId) {
        let open = self.channels.get(&channel);
        let tags: Vec<_> =
            open.into_iter().flat_map(|open| open.unsettled.keys().copied()).collect();
        for tag in tags {
            // It fails only without the channel.
            let _ = self.settle(channel, tag, Verdict::Requeue);
        }
    }

    /// Puts an unsettled message back into its queue, or dead-letters it at the delivery limit.
    ///
    /// Classic queues put it where it was ("Consumer Acknowledgements", requeueing). Quorum queues
    /// count the return and put it before everything that waits, except that one without a
    /// delivery limit puts what a consumer requeued at the end: RabbitMQ 3.10 writes it anew
    /// there, to be able to cut its log.
    fn give_back(&mut self, name: &str, mut message: Stored, how: Return) {
        message.returns += 1;
        let Some(queue) = self.queues.get_mut(name) else { return };
        if !queue.is_quorum() {
            queue.ready.put_back(message);
            return;
        }
        match queue.settings.delivery_limit {
            Some(_) if queue.settings.is_last_return(message.returns - 1) => {
                self.bury(name, message, Reason::DeliveryLimit);
            }
            None if how == Return::Requeued => queue.ready.push(message),
            _ => queue.ready.give_back(message),
        }
    }

    /// Closes channels: their consumers end, their unsettled messages go back, and only then does a
    /// queue turn to its next single active consumer.
    pub(super) fn close_channels(&mut self, ids: &[ChannelId], error: &dyn Fn() -> Error) {
        let mut touched = self.detach_consumers(ids);
        let closed: Vec<_> =
            ids.iter().filter_map(|id| Some((*id, self.channels.remove(id)?))).collect();
        for (id, channel) in closed {
            for (_, Unsettled { queue, message }) in channel.unsettled {
                if let Some(current) = self.current(&queue) {
                    current.taken_back(id);
                    self.give_back(&queue.0, message, Return::Abandoned);
                    touched.insert(queue);
                }
            }
            if let Some(deliveries) = channel.deliveries {
                // Nobody may be listening any more.
                let _ = deliveries.send(Err(error()));
            }
        }
        for (queue, _) in touched {
            self.refresh(&queue);
        }
    }

    /// Takes the consumers of channels off their queues. Returns the queues that are left.
    fn detach_consumers(&mut self, ids: &[ChannelId]) -> BTreeSet<QueueRef> {
        let mut queues = BTreeSet::new();
        for id in ids {
            let consumes = self.channels.get(id).and_then(|channel| channel.consumes.clone());
            if let Some(own) = consumes.filter(|own| self.is_current(own)) {
                self.detach_consumer(*id, &own.0);
                queues.insert(own);
            }
        }
        queues.retain(|own| self.is_current(own));
        queues
    }

    pub(super) fn is_open(&self, channel: ChannelId) -> bool {
        self.channels.contains_key(&channel)
    }

    pub(super) fn channels_of(&self, link: LinkId) -> Vec<ChannelId> {
        let own = self.channels.iter().filter(|(_, channel)| channel.link == link);
        own.map(|(id, _)| *id).collect()
    }

    /// Returns how many consumers RabbitMQ counts. A quorum queue counts as well who was cancelled
    /// and did not settle all it has, and each pulled message that is not settled.
    pub(super) fn count_consumers(&self, queue: &Queue) -> usize {
        if !queue.is_quorum() {
            return queue.consumers.counted();
        }
        let holders = queue.unsettled.iter().filter(|(id, _)| !queue.consumers.contains(**id));
        let others = holders.map(|(id, held)| {
            let consumed = self.channels.get(id).is_some_and(|channel| channel.consumes.is_some());
            if consumed { 1 } else { *held }
        });
        queue.consumers.counted() + others.sum::<usize>()
    }
}

/// The settlement of one delivery, bound to its channel. It does not keep the broker alive.
struct MemorySettle {
    broker: Weak<Broker>,
    channel: ChannelId,
    tag: u64,
}

impl MemorySettle {
    fn settle(self: Box<Self>, verdict: Verdict) -> BoxFuture<'static, Result<()>> {
        async move {
            tokio::task::consume_budget().await;
            let broker = self.broker.upgrade().ok_or_else(reply::channel_closed)?;
            broker.with(|state| state.settle(self.channel, self.tag, verdict))
        }
        .boxed()
    }
}

impl Settle for MemorySettle {
    fn is_live(&self) -> bool {
        let is_open = |broker: std::sync::Arc<Broker>| {
            broker.with(|state| state.channels.contains_key(&self.channel))
        };
        self.broker.upgrade().is_some_and(is_open)
    }

    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        self.settle(Verdict::Ack)
    }

    fn nack(self: Box<Self>, requeue: bool) -> BoxFuture<'static, Result<()>> {
        self.settle(if requeue { Verdict::Requeue } else { Verdict::Reject })
    }
}

impl fmt::Debug for MemorySettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySettle")
            .field("channel", &self.channel)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}
