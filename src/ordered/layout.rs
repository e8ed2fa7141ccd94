//! What is declared on the broker.

use crate::topology::{Exchange, Queue, Topology, standard};

/// How the queues of the partitions are declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OrderedLayout {
    /// Classic durable queues with a single active consumer and dead letters: order over any number
    /// of consuming processes.
    ///
    /// Not quorum queues: when a consumer of one closes with messages in hand, RabbitMQ gives the
    /// next consumer younger messages first (observed on 3.10). A classic queue lives on one node.
    #[default]
    SingleActive,
    /// The family's: quorum queues without arguments, as Java declares them.
    ///
    /// For queues that a service in another language declares too. Only one process may consume
    /// them, and closing it while others wait can break the order.
    Family,
}

pub(super) fn queue_name(name: &str, partition: u32) -> String {
    format!("{name}.p{partition}")
}

pub(super) fn routing_key(partition: u32) -> String {
    format!("p{partition}")
}

/// The queue that remembers how many partitions there are: its limit is their number, and the
/// broker refuses to declare it with another one.
pub(super) fn count_queue(name: &str) -> String {
    format!("{name}.partitions")
}

pub(super) fn count(name: &str, partitions: u32) -> Topology {
    let queue = Queue::classic(count_queue(name)).argument("x-max-length", i64::from(partitions));
    Topology::new().queue(queue)
}

pub(super) fn partitions(name: &str, partitions: u32, layout: OrderedLayout) -> Topology {
    let all = (0..partitions).map(|partition| self::partition(name, partition, layout));
    all.fold(Topology::new(), Topology::merge)
}

/// One partition: its queue, bound to the exchange, with its set-aside queues.
pub(super) fn partition(name: &str, partition: u32, layout: OrderedLayout) -> Topology {
    let queue = queue_name(name, partition);
    let declared = match layout {
        OrderedLayout::Family => Queue::quorum(queue.as_str()),
        OrderedLayout::SingleActive => Queue::classic(queue.as_str())
            .single_active_consumer()
            .dead_letter_to(standard::DEAD_LETTER_EXCHANGE, standard::dead_letter_name(&queue)),
    };
    Topology::new()
        .exchange(Exchange::direct(name))
        .queue(declared)
        .bind(queue.as_str(), name, routing_key(partition))
        .merge(standard::set_aside_queues(&queue))
}
