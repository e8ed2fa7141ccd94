//! An in-process broker with RabbitMQ's rules, on tokio's clock.
//!
//! It models what a service meets: direct, topic, fanout and headers exchanges, bindings between
//! them, alternates, classic and quorum queues, TTLs, dead letters, delivery limits, length limits,
//! priorities, single active and exclusive consumers. The model is RabbitMQ 3.10, quirks included where a program could meet
//! them; where the two differ, this one is wrong. What is not modelled is refused with
//! [`Error::Unsupported`](crate::Error::Unsupported), so that no test passes on an option that was
//! ignored.
//!
//! Time is tokio's: in a test with paused time a message with a TTL of four hours expires at once
//! when nothing else is left to do.
//!
//! The parts, from the outside in: [`MemoryTransport`] dials a link; `link`, `subscription` and
//! `channel` hold the seam's objects; `broker` holds the state and the lock; the other files each
//! hold one idea as methods of that state.
//!
//! Known differences, all on purpose: there are no users, so `user_id` is not checked; a failed
//! publish does not take other publishes down with its channel; everything that happens in one
//! operation is seen at once, while a real broker does some of it a little later; an expired message
//! that a priority puts at the head of a queue is noticed at once. `differential` looks for others.

mod broker;
mod channel;
mod consumer;
mod dead_letter;
mod declare;
mod exchange;
mod faults;
mod header_match;
mod limit;
mod link;
mod publish;
mod queue;
mod reply;
mod settings;
mod stored;
mod subscription;
#[cfg(test)]
mod tests;
mod timer;
mod topic;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use futures::{FutureExt, future::BoxFuture};

use self::{broker::Broker, link::MemoryLink};
use super::{Link, Transport};
use crate::{clock::Clock, error::Result};

pub(crate) use self::faults::MemoryBroker;

/// The brokers of this process that have a name. A broker goes with its last handle.
static NAMED: LazyLock<Mutex<HashMap<String, Weak<Broker>>>> = LazyLock::new(Mutex::default);

/// Dials an in-process broker.
#[derive(Debug, Clone)]
pub(crate) struct MemoryTransport {
    broker: Arc<Broker>,
}

impl MemoryTransport {
    /// Starts a broker that only clones of this transport reach.
    pub(crate) fn private() -> Self {
        Self { broker: Broker::new("") }
    }

    /// Reaches the broker of this name, and starts it if nobody in the process holds it.
    pub(crate) fn named(name: &str) -> Self {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(broker) = named.get(name).and_then(Weak::upgrade) {
            return Self { broker };
        }
        named.retain(|_, broker| broker.strong_count() > 0);
        let broker = Broker::new(name);
        named.insert(name.to_owned(), Arc::downgrade(&broker));
        Self { broker }
    }

    /// Returns a handle for faults and assertions.
    pub(crate) fn broker(&self) -> MemoryBroker {
        MemoryBroker::new(Arc::clone(&self.broker))
    }
}

impl Transport for MemoryTransport {
    /// The name is for a broker's tools; this one has none.
    fn dial(&self, _name: &str) -> BoxFuture<'_, Result<Arc<dyn Link>>> {
        async move {
            let link = MemoryLink::dial(&self.broker, self.endpoint())?;
            Ok(Arc::new(link) as Arc<dyn Link>)
        }
        .boxed()
    }

    fn clock(&self) -> Clock {
        self.broker.clock().clone()
    }

    fn endpoint(&self) -> String {
        format!("{}{}", reply::TRANSPORT, self.broker.name)
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}
