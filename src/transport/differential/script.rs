//! What is done to both brokers.

use std::fmt;

use bytes::Bytes;

use crate::{
    message::{HeaderValue, Headers, Properties},
    topology::{Binding, Exchange, Queue, Topology},
    transport::{Outgoing, Subscribe},
};

/// A TTL that is over before the next step.
pub(super) const SHORT_MS: i64 = 25;

/// A TTL that no script lives to see the end of.
pub(super) const LONG_MS: i64 = 3_600_000;

/// A list of steps, and the names that they use.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) title: String,
    /// Before every name, so that scripts can run at the same time.
    pub(super) prefix: String,
    pub(super) exchanges: Vec<Exchange>,
    pub(super) queues: Vec<Queue>,
    pub(super) bindings: Vec<Binding>,
    pub(super) steps: Vec<Step>,
}

/// One thing that is done.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Declares one object, which may exist, with other properties or without.
    Declare(Box<Topology>),
    Publish(Box<Outgoing>),
    Subscribe(Box<Subscribe>),
    /// Takes one message and keeps the channel open.
    Pull(String),
    /// Settles one of the deliveries that are not settled, counted from the oldest of the first
    /// consumer; modulo how many there are.
    Settle(usize, Verdict),
    /// Stops a consumer, which keeps what it has. Modulo how many were started.
    Cancel(usize),
    /// Closes the channel of a consumer or a pull. Modulo how many are open.
    Close(usize),
    Delete(String),
}

/// What becomes of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ack,
    Requeue,
    Reject,
}

impl Script {
    pub(super) fn new(title: impl Into<String>) -> Self {
        let random = uuid::Uuid::new_v4().simple().to_string();
        Self {
            title: title.into(),
            prefix: format!("t.{}.diff.", &random[..8]),
            exchanges: Vec::new(),
            queues: Vec::new(),
            bindings: Vec::new(),
            steps: Vec::new(),
        }
    }

    pub(super) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn exchange(mut self, exchange: Exchange) -> Self {
        self.exchanges.push(exchange.auto_delete());
        self
    }

    pub(super) fn queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    pub(super) fn bind(mut self, binding: Binding) -> Self {
        self.bindings.push(binding);
        self
    }

    pub(super) fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub(super) fn queue_names(&self) -> Vec<String> {
        self.queues.iter().map(|queue| queue.name.clone()).collect()
    }

    /// The declarations, one by one, and the steps.
    pub(super) fn all_steps(&self) -> Vec<Step> {
        let exchanges = self.exchanges.iter().cloned().map(one_exchange);
        let queues = self.queues.iter().cloned().map(one_queue);
        let bindings = self.bindings.iter().cloned().map(one_binding);
        exchanges.chain(queues).chain(bindings).chain(self.steps.iter().cloned()).collect()
    }
}

pub(super) fn one_exchange(exchange: Exchange) -> Step {
    Step::Declare(Box::new(Topology { exchanges: vec![exchange], ..Topology::default() }))
}

/// One queue, without the dead-letter queue that `Topology::queue` may add.
pub(super) fn one_queue(queue: Queue) -> Step {
    Step::Declare(Box::new(Topology { queues: vec![queue], ..Topology::default() }))
}

pub(super) fn one_binding(binding: Binding) -> Step {
    Step::Declare(Box::new(Topology { bindings: vec![binding], ..Topology::default() }))
}

/// A mandatory, persistent message.
pub(super) fn publish(exchange: &str, routing_key: &str, body: &str) -> Outgoing {
    Outgoing {
        exchange: exchange.to_owned(),
        routing_key: routing_key.to_owned(),
        mandatory: true,
        properties: Properties {
            message_id: Some(body.to_owned()),
            persistent: true,
            ..Properties::default()
        },
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

pub(super) fn send(queue: &str, body: &str) -> Step {
    Step::Publish(Box::new(publish("", queue, body)))
}

pub(super) fn subscribe(queue: &str, prefetch: u16, priority: i64) -> Subscribe {
    let priority = (priority != 0).then_some(("x-priority", HeaderValue::Long(priority)));
    Subscribe {
        queue: queue.to_owned(),
        // Unique on its channel, which it has for itself.
        tag: "t".to_owned(),
        prefetch,
        exclusive: false,
        arguments: priority.into_iter().collect::<Headers>(),
    }
}

pub(super) fn consume(queue: &str, prefetch: u16) -> Step {
    Step::Subscribe(Box::new(subscribe(queue, prefetch, 0)))
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.title)?;
        for (number, step) in self.all_steps().iter().enumerate() {
            writeln!(f, "  {number}: {step:?}")?;
        }
        Ok(())
    }
}
