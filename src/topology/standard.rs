//! The exchanges and queues that every AceMQ library agrees on (wire contract, section 6.2).
//!
//! One extra argument makes every other language fail with 406, so these are written once, here.

use super::{Exchange, Queue, Topology};

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

/// The queue of one step of a pipeline (wire contract, section 11.1).
pub(crate) fn step_queue_name(pipeline: &str, step: &str) -> String {
    format!("{pipeline}.{step}")
}

/// `{queue}.dlq`, bound to the dead-letter exchange on its own name.
pub(crate) fn dead_letter_queue(queue: &str) -> Topology {
    set_aside_queue(dead_letter_name(queue))
}

/// What a consumer of `queue` declares when it starts, so that no failure lacks a place.
pub(crate) fn set_aside_queues(queue: &str) -> Topology {
    dead_letter_queue(queue).merge(set_aside_queue(parked_name(queue)))
}

fn set_aside_queue(name: String) -> Topology {
    Topology::new()
        .exchange(Exchange::direct(DEAD_LETTER_EXCHANGE))
        .queue(Queue::classic(name.as_str()))
        .bind(name.as_str(), DEAD_LETTER_EXCHANGE, name.as_str())
}
