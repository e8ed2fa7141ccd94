//! Exchanges, queues and bindings as plain values.
//!
//! A [`Topology`] is a list of things that should exist; `mq.declare(..)` makes them so, and makes
//! them again after a reconnect. Declaring is idempotent and never deletes or changes anything: an
//! object that exists with other properties is an error that names the difference.

mod binding;
mod exchange;
mod plan;
mod queue;
pub(crate) mod standard;

pub(crate) use binding::Destination;
pub use binding::{Binding, HeaderMatch};
pub use exchange::{Exchange, ExchangeKind};
pub use plan::{Finding, ObjectKind, PlannedObject, TopologyPlan};
pub use queue::{Overflow, Queue, QueueKind};

use crate::error::{Error, Result};

/// Exchanges, queues and bindings that belong together.
///
/// # Examples
///
/// ```
/// use acemq::{AceMq, Exchange, Queue, Topology};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), acemq::Error> {
/// let mq = AceMq::connect("memory://").await?;
/// mq.declare(
///     &Topology::new()
///         .exchange(Exchange::topic("orders"))
///         .queue(Queue::new("billing.orders"))
///         .bind("billing.orders", "orders", "order.*"),
/// )
/// .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "a topology does nothing until it is passed to `AceMq::declare`"]
pub struct Topology {
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) bindings: Vec<Binding>,
}

impl Topology {
    /// Creates an empty topology.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an exchange.
    pub fn exchange(mut self, exchange: Exchange) -> Self {
        self.exchanges.push(exchange);
        self
    }

    /// Adds a queue; one with a dead-letter target of this library brings its `.dlq` with it.
    pub fn queue(mut self, queue: Queue) -> Self {
        if queue.has_standard_dead_letter_target() {
            self = self.merge(standard::dead_letter_queue(&queue.name));
        }
        self.queues.push(queue);
        self
    }

    /// Adds a binding from an exchange to a queue.
    pub fn bind(
        mut self,
        queue: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        self.bindings.push(Binding::new(queue, exchange, routing_key));
        self
    }

    /// Adds a binding that routes what `from` takes under a matching key on to the exchange `to`.
    pub fn bind_exchange(
        self,
        to: impl Into<String>,
        from: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        self.binding(Binding::exchange(to, from, routing_key))
    }

    /// Adds a binding, for instance one of a headers exchange.
    pub fn binding(mut self, binding: Binding) -> Self {
        self.bindings.push(binding);
        self
    }

    /// Adds everything of another topology.
    pub fn merge(mut self, other: Self) -> Self {
        self.exchanges.extend(other.exchanges);
        self.queues.extend(other.queues);
        self.bindings.extend(other.bindings);
        self
    }

    /// Takes a topology apart into topologies of one object each, in the order of declaring.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = Self> {
        let exchanges = self
            .exchanges
            .into_iter()
            .map(|exchange| Self { exchanges: vec![exchange], ..Self::default() });
        let queues =
            self.queues.into_iter().map(|queue| Self { queues: vec![queue], ..Self::default() });
        let bindings = self
            .bindings
            .into_iter()
            .map(|binding| Self { bindings: vec![binding], ..Self::default() });
        exchanges.chain(queues).chain(bindings)
    }

    /// Checks every name and argument before anything is declared.
    pub(crate) fn check(&self) -> Result<()> {
        self.exchanges.iter().try_for_each(Exchange::check)?;
        self.queues.iter().try_for_each(Queue::check)?;
        self.bindings.iter().try_for_each(Binding::check)
    }
}

/// Refuses a name that is empty or longer than AMQP's short strings.
pub(crate) fn check_name(option: &'static str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(option, name, "is empty"));
    }
    check_address(option, name)
}

/// The longest name of an exchange or queue that is not plain ASCII, in bytes.
const MAX_UNICODE_NAME: usize = 200;

/// Refuses an exchange or queue name that is too long, or that the broker could not write back.
///
/// RabbitMQ cuts the text of an error at 252 bytes, also within a character. A client that reads
/// texts as UTF-8 takes that for a broken frame and loses its connection, so a name that could be
/// cut there is refused.
pub(crate) fn check_address(option: &'static str, name: &str) -> Result<()> {
    check_length(option, name)?;
    if name.len() > MAX_UNICODE_NAME && !name.is_ascii() {
        let reason = format!(
            "is {} bytes long; a name that is not ASCII may have {MAX_UNICODE_NAME}",
            name.len()
        );
        return Err(Error::invalid(option, name, reason));
    }
    Ok(())
}

/// Refuses text longer than AMQP's short strings: 255 bytes, not characters.
pub(crate) fn check_length(option: &'static str, text: &str) -> Result<()> {
    if text.len() > 255 {
        let reason = format!("is {} bytes long; AMQP allows 255", text.len());
        return Err(Error::invalid(option, text, reason));
    }
    Ok(())
}
