//! The exchanges and queues that every AceMQ library agrees on (wire contract, section 6.2).
//!
//! One extra argument makes every other language fail with 406, so these are written once, here.

use std::time::Duration;

use super::{Exchange, Queue, Topology};
use crate::clock::millis;

/// Where rejected and set-aside messages are routed from.
pub(crate) const DEAD_LETTER_EXCHANGE: &str = "acemq.dlx";

/// Where a message returns to its queue from a retry rung.
pub(crate) const RETRY_EXCHANGE: &str = "acemq.retry";

/// The queue of messages that a handler of `queue` gave up on.
pub(crate) fn dead_letter_name(queue: &str) -> String {
    format!("{queue}.dlq")
}

/// The queue of messages that were never going to work.
pub(crate) fn parked_name(queue: &str) -> String {
    format!("{queue}.parked")
}

/// The queue that the messages in a dead-letter or parked queue came from; none for any other
/// name. `.dead` is what old .NET members called a dead-letter queue: read, never declared.
pub(crate) fn source_queue_name(set_aside: &str) -> Option<&str> {
    [".dlq", ".parked", ".dead"]
        .iter()
        .find_map(|suffix| set_aside.strip_suffix(suffix))
        .filter(|queue| !queue.is_empty())
}

/// How long the broker keeps a reply queue that nobody consumes (wire contract, section 9.2).
const REPLY_QUEUE_EXPIRES: Duration = Duration::from_mins(10);

/// The name of a new requester's reply queue.
pub(crate) fn reply_queue_name() -> String {
    format!("acemq.reply.{}", uuid::Uuid::new_v4())
}

/// A reply queue. It has no dead-letter and no parked queue: nothing in it ever fails.
pub(crate) fn reply_queue(name: &str) -> Topology {
    Topology::new().queue(Queue::classic(name).expires(REPLY_QUEUE_EXPIRES))
}

/// The queue of one step of a pipeline (wire contract, section 11.1).
pub(crate) fn step_queue_name(pipeline: &str, step: &str) -> String {
    format!("{pipeline}.{step}")
}

/// `{queue}.dlq`, bound to the dead-letter exchange on its own name.
pub(crate) fn dead_letter_queue(queue: &str) -> Topology {
    set_aside_queue(&dead_letter_name(queue))
}

/// What a consumer of `queue` declares when it starts, so that no failure lacks a place.
pub(crate) fn set_aside_queues(queue: &str) -> Topology {
    dead_letter_queue(queue).merge(set_aside_queue(&parked_name(queue)))
}

/// `{queue}.retry.{d}`: where messages of `queue` wait for `delay` in the broker.
///
/// The suffix is the largest whole unit. Below a second it is Java's; Go, Python and Ruby cut to
/// whole seconds, so a delay that is not one gives them another name.
pub(crate) fn retry_rung_name(queue: &str, delay: Duration) -> String {
    let ms = millis(delay);
    let suffix = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")]
        .iter()
        .find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit))
        .map_or_else(|| format!("{ms}ms"), |(unit, letter)| format!("{}{letter}", ms / unit));
    format!("{queue}.retry.{suffix}")
}

/// The rungs of `queue`, one for each delay, and its way back from them; nothing without delays.
///
/// A rung has exactly the three arguments of the contract.
pub(crate) fn retry_rungs(queue: &str, delays: &[Duration]) -> Topology {
    if delays.is_empty() {
        return Topology::new();
    }
    let way_back = Topology::new().exchange(Exchange::direct(RETRY_EXCHANGE)).bind(
        queue,
        RETRY_EXCHANGE,
        queue,
    );
    delays.iter().fold(way_back, |topology, delay| {
        let rung = Queue::classic(retry_rung_name(queue, *delay));
        topology.queue(rung.message_ttl(*delay).dead_letter_to(RETRY_EXCHANGE, queue))
    })
}

fn set_aside_queue(name: &str) -> Topology {
    Topology::new()
        .exchange(Exchange::direct(DEAD_LETTER_EXCHANGE))
        .queue(Queue::classic(name))
        .bind(name, DEAD_LETTER_EXCHANGE, name)
}
