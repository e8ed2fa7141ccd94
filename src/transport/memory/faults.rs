//! What a test can do to the broker, and see in it.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    broker::{Broker, State},
    reply,
    stored::Stored,
};
use crate::{message::Properties, topology::QueueKind, transport::LinkStatus};

/// A handle on a broker for faults and assertions.
///
/// Every call takes effect before it returns.
#[derive(Debug, Clone)]
pub(crate) struct MemoryBroker {
    broker: Arc<Broker>,
}

impl MemoryBroker {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Self { broker }
    }

    /// Cuts every connection.
    pub(crate) fn disconnect_all(&self, reason: &str) {
        self.broker.with(|state| state.lose_all_links(reason));
    }

    /// Refuses new connections, or lets them in again. Existing ones stay.
    pub(crate) fn refuse_connections(&self, refuse: bool) {
        self.broker.with(|state| state.connections_refused = refuse);
    }

    /// Raises an alarm: publishes wait until it is over.
    ///
    /// RabbitMQ reads one more message from a connection before it blocks it, and tells the
    /// connection only then; here every connection is told at once.
    pub(crate) fn block(&self, reason: &str) {
        self.broker.with(|state| {
            state.alarm = Some(reason.to_owned());
            state.tell_links(&LinkStatus::Blocked(reason.to_owned()));
        });
    }

    /// Ends the alarm: what waits is published in order.
    pub(crate) fn unblock(&self) {
        self.broker.with(|state| {
            state.alarm = None;
            state.tell_links(&LinkStatus::Open);
            state.read_unread();
        });
    }

    /// Holds the answers to publishes back, or gives them. The messages are routed all the same:
    /// with [`disconnect_all`](Self::disconnect_all) they may have been published, and were.
    pub(crate) fn hold_confirms(&self, hold: bool) {
        self.broker.with(|state| {
            state.confirms_held = hold;
            if !hold {
                state.release_confirms();
            }
        });
    }

    /// Returns how many publishes wait for their answer.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.broker.with(|state| state.links.values().map(|link| link.pending.len()).sum())
    }

    /// Returns routing key, properties and body of the messages of a queue that are ready for
    /// delivery, the next first.
    pub(crate) fn messages(&self, queue: &str) -> Vec<(String, Properties, Bytes)> {
        self.broker.with(|state| {
            let ready = state.queues.get(queue).into_iter().flat_map(|queue| queue.ready.iter());
            ready
                .map(|Stored { message, .. }| {
                    let routing_key = message.routing_key().to_owned();
                    (routing_key, message.properties.clone(), message.body.clone())
                })
                .collect()
        })
    }

    /// Returns how many messages of a queue are delivered and not settled.
    pub(crate) fn unsettled(&self, queue: &str) -> usize {
        self.broker
            .with(|state| state.queues.get(queue).map_or(0, |queue| queue.unsettled.values().sum()))
    }

    /// Returns the names of all queues, sorted.
    pub(crate) fn queue_names(&self) -> Vec<String> {
        self.broker.with(|state| state.queues.keys().cloned().collect())
    }

    /// Returns when a message expires next, also one behind others or with a consumer, or when
    /// anything else happens by itself.
    #[cfg(all(test, feature = "rabbitmq"))]
    pub(crate) fn next_expiry(&self) -> Option<tokio::time::Instant> {
        self.broker.with(|state| {
            use super::channel::Channel;
            let waiting = state.queues.values().flat_map(|queue| queue.ready.iter());
            let with_consumers = state.channels.values().flat_map(Channel::messages);
            let messages = waiting.chain(with_consumers).filter_map(|message| message.expires);
            let due = state.timetable.iter().map(|(at, _)| *at);
            messages.chain(due).filter(|at| *at > state.now).min()
        })
    }

    /// Restarts the broker: every connection is lost, and what is not durable is gone.
    pub(crate) fn restart(&self) {
        self.broker.with(|state| {
            state.lose_all_links("CONNECTION_FORCED - broker forced connection closure");
            state.forget_transient();
        });
    }
}

impl State {
    /// Loses all links at the same moment, so that none gets what another leaves behind.
    fn lose_all_links(&mut self, reason: &str) {
        let channels: Vec<_> = self.channels.keys().copied().collect();
        self.close_channels(&channels, &|| reply::interrupted(reason));
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.lose_link(link, reason);
        }
    }

    fn tell_links(&self, status: &LinkStatus) {
        for link in self.links.values() {
            link.status.send_if_modified(|known| {
                let changed = known != status;
                known.clone_from(status);
                changed
            });
        }
    }

    /// Keeps what a restart keeps: durable exchanges and queues, and in classic queues only
    /// persistent messages; a quorum queue writes every message to disk.
    fn forget_transient(&mut self) {
        let transient = self.queues.iter().filter(|(_, queue)| !queue.declared.durable);
        for name in transient.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.remove_queue(&name);
        }
        let transient = self.exchanges.iter().filter(|(_, exchange)| !exchange.durable);
        for name in transient.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.remove_exchange(&name);
        }
        let now = self.now;
        for name in self.queues.keys().cloned().collect::<Vec<_>>() {
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.used_at = now;
                if queue.settings.kind == QueueKind::Classic {
                    queue.ready.retain(|message| message.message.properties.persistent);
                }
            }
            self.refresh(&name);
        }
    }
}
