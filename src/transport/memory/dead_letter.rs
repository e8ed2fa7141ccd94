//! Dead letters ("Dead Letter Exchanges"): what a queue removes without an ack is routed again.

use super::{
    broker::State,
    settings::DeadLetterTarget,
    stored::{Message, Stored, further_keys},
};
use crate::message::{HeaderValue, Headers};

/// Why a message left its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Rejected,
    Expired,
    /// Its queue is full.
    MaxLength,
    DeliveryLimit,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::MaxLength => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// A message on its way from a queue to that queue's dead-letter exchange.
#[derive(Debug)]
pub(super) struct DeadLetter {
    queue: String,
    target: DeadLetterTarget,
    message: Message,
    reason: Reason,
}

impl State {
    /// Removes the messages at the head of a queue whose time is over.
    ///
    /// Only the head expires: a message behind one that lives longer waits for it ("Time-To-Live
    /// and Expiration", caveats).
    pub(super) fn expire_heads(&mut self, name: &str) {
        let now = self.now;
        loop {
            let Some(queue) = self.queues.get_mut(name) else { return };
            let head = queue.ready.head().and_then(|message| message.expires);
            if head.is_none_or(|expires| expires > now) {
                return;
            }
            let Some(message) = queue.ready.pop() else { return };
            self.bury(name, message, Reason::Expired);
        }
    }

    /// Lets a message leave its queue for the dead-letter exchange, if the queue has one.
    ///
    /// It is routed at the end of the current operation, so that queues that dead-letter into each
    /// other are worked off one by one.
    pub(super) fn bury(&mut self, name: &str, message: Stored, reason: Reason) {
        self.dead_letter(name, message.message, reason);
    }

    /// Sends a message to the dead-letter exchange of a queue, if the queue has one.
    pub(super) fn dead_letter(&mut self, name: &str, message: Message, reason: Reason) {
        let target = self.queues.get(name).and_then(|queue| queue.settings.dead_letter.clone());
        if let Some(target) = target {
            let queue = name.to_owned();
            self.dead.push_back(DeadLetter { queue, target, message, reason });
        }
    }

    /// Routes the waiting dead letters. A missing exchange, or no queue, drops them.
    pub(super) fn route_dead_letters(&mut self) {
        while let Some(DeadLetter { queue, target, mut message, reason }) = self.dead.pop_front() {
            stamp(&mut message, &queue, &target, reason, self.epoch_seconds);
            let mut queues = self.route(&message);
            if reason != Reason::Rejected {
                queues.retain(|queue| !is_cycle(queue, &message.properties.headers));
            }
            for queue in queues {
                self.dead_before = self.dead.len();
                self.enqueue(&queue, message.clone(), None);
            }
        }
        self.dead_before = 0;
    }
}

/// Writes the death into the message and readdresses it.
fn stamp(
    message: &mut Message,
    queue: &str,
    target: &DeadLetterTarget,
    reason: Reason,
    epoch_seconds: u64,
) {
    let death = death(message, queue, reason, epoch_seconds);
    // A message may die of one TTL; in its next queue it starts afresh.
    message.properties.expiration = None;
    if target.routing_key.is_some() {
        message.properties.headers.remove("CC");
    }
    record(&mut message.properties.headers, death);
    message.exchange.clone_from(&target.exchange);
    if let Some(key) = &target.routing_key {
        message.routing_keys = vec![key.clone()];
    }
}

/// The entry of `x-death` for one death, without its count.
fn death(message: &Message, queue: &str, reason: Reason, epoch_seconds: u64) -> Headers {
    let mut keys = vec![message.routing_key().to_owned()];
    // The type was checked when the message was accepted.
    keys.extend(further_keys(&message.properties, "CC").unwrap_or_default());
    let mut death = Headers::new();
    death.insert("reason", reason.as_str());
    death.insert("queue", queue);
    death.insert("time", HeaderValue::Timestamp(epoch_seconds));
    death.insert("exchange", message.exchange.as_str());
    death.insert("routing-keys", HeaderValue::List(keys.into_iter().map(Into::into).collect()));
    if let Some(expiration) = &message.properties.expiration {
        death.insert("original-expiration", expiration.as_str());
    }
    death
}

/// Adds a death to `x-death`, before the others.
///
/// A second death in the same queue for the same reason raises the count of the first and brings
/// it to the front; the rest of that entry stays as it was.
fn record(headers: &mut Headers, mut death: Headers) {
    let deaths = match headers.remove("x-death") {
        Some(HeaderValue::List(deaths)) => deaths,
        Some(_) => Vec::new(),
        None => {
            for name in ["reason", "queue", "exchange"] {
                if let Some(value) = death.get(name) {
                    headers.insert(format!("x-first-death-{name}"), value.clone());
                }
            }
            Vec::new()
        }
    };
    let mut deaths = one_for_each_cause(deaths);
    let mut count = 0;
    if let Some(earlier) = deaths.iter().position(|earlier| is_of_one_cause(earlier, &death)) {
        death = deaths.remove(earlier);
        count = death.get("count").and_then(HeaderValue::as_i64).unwrap_or_default();
    }
    death.insert("count", HeaderValue::Long(count.saturating_add(1)));
    deaths.insert(0, death);
    let deaths = deaths.into_iter().map(HeaderValue::Table).collect();
    headers.insert("x-death", HeaderValue::List(deaths));
}

/// The entries of a history, one for each queue and reason; only a client could have written more,
/// or something else.
///
/// RabbitMQ 3.10 turns a history of several entries round each time: the latest death comes first,
/// and those before it change their order with every further one.
fn one_for_each_cause(history: Vec<HeaderValue>) -> Vec<Headers> {
    let mut deaths: Vec<Headers> = Vec::new();
    let mut entries = 0;
    for entry in history {
        let HeaderValue::Table(death) = entry else { continue };
        entries += 1;
        if deaths.iter().any(|known| is_of_one_cause(known, &death)) {
            continue;
        }
        deaths.push(death);
    }
    if entries > 1 {
        deaths.reverse();
    }
    deaths
}

fn is_of_one_cause(one: &Headers, other: &Headers) -> bool {
    ["queue", "reason"].iter().all(|name| one.get(name) == other.get(name))
}

/// Returns whether a message that just died would come back to `queue` by itself.
///
/// It would if it died there before and nobody rejected it since: such a message is dropped, or it
/// would go round for ever ("Automatically Dead-lettered Message Cycles").
fn is_cycle(queue: &str, headers: &Headers) -> bool {
    let Some(HeaderValue::List(deaths)) = headers.get("x-death") else { return false };
    let deaths = deaths.iter().filter_map(|death| match death {
        HeaderValue::Table(death) => Some(death),
        _ => None,
    });
    for death in deaths {
        if death.text("reason") == Some(Reason::Rejected.as_str()) {
            return false;
        }
        if death.text("queue") == Some(queue) {
            return true;
        }
    }
    false
}
