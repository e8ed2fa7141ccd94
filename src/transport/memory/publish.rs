//! Publishing: routing a message and answering its publisher.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    broker::{LinkId, State},
    dead_letter::Reason,
    reply,
    stored::{Message, Stored},
};
use crate::{
    error::{Error, Result},
    topology::Overflow,
    transport::Outgoing,
};

/// The publisher's end of a confirm.
pub(super) type Confirm = oneshot::Sender<Result<()>>;

/// The publishes of one link that have no answer yet, each in the order of publishing.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Written to a connection that the broker does not read.
    unread: VecDeque<(Outgoing, Confirm)>,
    /// Routed, with the answer held back.
    held: VecDeque<(Result<()>, Confirm)>,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.unread.len() + self.held.len()
    }

    /// Ends every wait because the connection is gone.
    pub(super) fn interrupt(self, reason: &str) {
        let unread = self.unread.into_iter().map(|(_, confirm)| confirm);
        for confirm in unread.chain(self.held.into_iter().map(|(_, confirm)| confirm)) {
            answer(confirm, Err(reply::interrupted(reason)));
        }
    }
}

/// Answers a publisher, who may have stopped waiting.
fn answer(confirm: Confirm, result: Result<()>) {
    let _ = confirm.send(result);
}

impl State {
    /// Takes a message from a connection and answers, or answers later.
    ///
    /// The broker stops reading a blocked connection ("Memory Alarms"): a message written to it is
    /// on its way even if its publisher stops waiting, and goes on when the alarm is over.
    pub(super) fn publish(&mut self, link: LinkId, outgoing: Outgoing, confirm: Confirm) {
        let blocked = self.alarm.is_some();
        let held = self.confirms_held;
        if let Err(lost) = self.check_open(link) {
            return answer(confirm, Err(lost));
        }
        if blocked {
            if let Some(open) = self.links.get_mut(&link) {
                open.pending.unread.push_back((outgoing, confirm));
            }
            return;
        }
        let result = self.accept(link, outgoing);
        match self.links.get_mut(&link) {
            Some(open) if held => open.pending.held.push_back((result, confirm)),
            _ => answer(confirm, result),
        }
    }

    /// Routes a message, and says what the publisher is told.
    fn accept(&mut self, link: LinkId, outgoing: Outgoing) -> Result<()> {
        if !outgoing.exchange.is_empty() && !self.exchanges.contains_key(&outgoing.exchange) {
            return Err(reply::no_exchange(&outgoing.exchange));
        }
        let mandatory = outgoing.mandatory;
        let message = Message::accept(outgoing)?;
        let exchange = message.exchange.clone();
        let routing_key = message.routing_key().to_owned();
        let queues = self.route(&message);
        if queues.is_empty() && mandatory {
            let reason = "312 NO_ROUTE".to_owned();
            return Err(Error::Unroutable { exchange, routing_key, reason });
        }
        // A message for several queues is confirmed when all took it, and kept by those that did.
        let mut refused = false;
        for queue in queues {
            refused |= !self.enqueue(&queue, message.clone(), Some(link));
        }
        if refused { Err(Error::Nacked { exchange, routing_key }) } else { Ok(()) }
    }

    /// Finds the queues that a message goes to. The default exchange takes queue names.
    pub(super) fn route(&self, message: &Message) -> BTreeSet<String> {
        if !message.exchange.is_empty() {
            return self.reach(&message.exchange, message);
        }
        let named = message.routing_keys.iter().filter(|key| self.queues.contains_key(*key));
        named.cloned().collect()
    }

    /// Puts a message into a queue. `false` if the queue refuses it because it is full.
    ///
    /// The smaller of the queue's TTL and the message's counts. A TTL of zero means: to a consumer
    /// with room now, or expired, which is why delivery comes first here.
    pub(super) fn enqueue(
        &mut self,
        name: &str,
        message: Message,
        publisher: Option<LinkId>,
    ) -> bool {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(name) else { return false };
        if !queue.takes(&message, publisher) {
            if queue.settings.overflow == Overflow::RejectPublishDeadLetter {
                self.dead_letter(name, message, Reason::MaxLength);
            }
            return false;
        }
        let ttl = message.ttl().into_iter().chain(queue.settings.message_ttl).min();
        // A quorum queue of RabbitMQ 3.10 keeps what expires at once for a millisecond.
        let least = Duration::from_millis(queue.is_quorum().into());
        let expires = ttl.map(|ttl| now + ttl.max(least));
        let priority = queue.settings.priority_of(&message);
        queue.ready.push(Stored { message, priority, position: 0, expires, returns: 0 });
        self.deliver_next(name);
        self.refresh(name);
        true
    }

    /// Reads what was written while the connections were blocked.
    pub(super) fn read_unread(&mut self) {
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            let Some(open) = self.links.get_mut(&link) else { continue };
            for (outgoing, confirm) in std::mem::take(&mut open.pending.unread) {
                self.publish(link, outgoing, confirm);
            }
        }
    }

    /// Gives the answers that were held back.
    pub(super) fn release_confirms(&mut self) {
        for open in self.links.values_mut() {
            for (result, confirm) in std::mem::take(&mut open.pending.held) {
                answer(confirm, result);
            }
        }
    }
}
