//! Bindings.

use std::fmt;

use super::{check_length, check_name};
use crate::{
    error::Result,
    message::{HeaderValue, Headers},
};

/// A subscription of a queue, or of another exchange, to an exchange.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a binding does nothing until its topology is declared"]
pub struct Binding {
    pub(crate) to: Destination,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) arguments: Headers,
}

/// Where a binding leads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Destination {
    Queue(String),
    Exchange(String),
}

/// Which headers of a message must be those of the binding, for a headers exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderMatch {
    /// All of the binding's. Names that start with `x-` do not count.
    All,
    /// One of the binding's or more. Names that start with `x-` do not count.
    Any,
    /// All of the binding's, also those that start with `x-`. RabbitMQ from 3.10.
    AllWithX,
    /// One of the binding's or more, also those that start with `x-`. RabbitMQ from 3.10.
    AnyWithX,
}

impl HeaderMatch {
    /// Returns RabbitMQ's name of it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Any => "any",
            Self::AllWithX => "all-with-x",
            Self::AnyWithX => "any-with-x",
        }
    }
}

impl Binding {
    /// Creates a binding: messages of `exchange` whose key matches `routing_key` go to `queue`.
    pub fn new(
        queue: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        Self::of(Destination::Queue(queue.into()), exchange.into(), routing_key.into())
    }

    /// Creates a binding between exchanges: messages of `from` whose key matches `routing_key` go
    /// to the exchange `to`, which routes them by its own bindings.
    ///
    /// A message reaches each queue once, however many ways lead there, and a ring of exchanges
    /// ends where it began.
    pub fn exchange(
        to: impl Into<String>,
        from: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        Self::of(Destination::Exchange(to.into()), from.into(), routing_key.into())
    }

    /// Creates a binding to a headers exchange; add the headers with
    /// [`argument`](Self::argument).
    ///
    /// The values are compared, not their widths: 1 is 1, also as 64 bits or as a floating-point
    /// number. [`HeaderValue::Null`] asks only that the header is there. A binding without headers
    /// takes every message with `All`, and none with `Any`.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, Binding, Envelope, Exchange, HeaderMatch, Queue, Topology};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// let german_invoices = Binding::headers("invoices.de", "documents", HeaderMatch::All)
    ///     .argument("kind", "invoice")
    ///     .argument("country", "DE");
    /// mq.declare(
    ///     &Topology::new()
    ///         .exchange(Exchange::headers("documents"))
    ///         .queue(Queue::new("invoices.de"))
    ///         .binding(german_invoices),
    /// )
    /// .await?;
    ///
    /// let documents = mq.publisher::<u32>("documents", "");
    /// let headers = Envelope::new().header("kind", "invoice").header("country", "DE");
    /// documents.send_with(&42, headers).await?;
    /// assert_eq!(mq.queue_length("invoices.de").await?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn headers(
        queue: impl Into<String>,
        exchange: impl Into<String>,
        matching: HeaderMatch,
    ) -> Self {
        Self::new(queue, exchange, "").argument("x-match", matching.as_str())
    }

    /// Sets an argument; for a headers exchange it is a header to match.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.arguments.insert(name, value);
        self
    }

    fn of(to: Destination, exchange: String, routing_key: String) -> Self {
        Self { to, exchange, routing_key, arguments: Headers::new() }
    }

    /// The queue that the binding leads to, if it is one.
    pub(crate) fn queue(&self) -> Option<&str> {
        match &self.to {
            Destination::Queue(queue) => Some(queue),
            Destination::Exchange(_) => None,
        }
    }

    /// The destination's name.
    pub(crate) fn destination(&self) -> &str {
        match &self.to {
            Destination::Queue(name) | Destination::Exchange(name) => name,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        match &self.to {
            Destination::Queue(name) => check_name("binding queue", name)?,
            Destination::Exchange(name) => check_name("binding exchange", name)?,
        }
        check_name("binding exchange", &self.exchange)?;
        check_length("binding routing key", &self.routing_key)?;
        self.arguments.iter().try_for_each(|(name, _)| check_length("binding argument", name))
    }
}

/// `source --key--> destination`.
impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exchange, routing_key, .. } = self;
        write!(f, "{exchange} --{routing_key}--> {}", self.destination())
    }
}
