//! Exchanges.

use super::check_name;
use crate::{
    error::{Error, Result},
    message::Headers,
};

/// How an exchange routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExchangeKind {
    /// To the queues bound with exactly the routing key.
    Direct,
    /// To the queues whose pattern matches the key: `*` is one word, `#` any number of words.
    Topic,
    /// To every bound queue.
    Fanout,
    /// To what is bound with the message's header values; the routing key does not count. See
    /// [`Binding::headers`](super::Binding::headers).
    Headers,
}

impl ExchangeKind {
    /// Returns AMQP's name of the kind.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Topic => "topic",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
        }
    }
}

/// An exchange that should exist.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "an exchange does nothing until its topology is declared"]
pub struct Exchange {
    pub(crate) name: String,
    pub(crate) kind: ExchangeKind,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: Headers,
}

impl Exchange {
    /// Describes a durable exchange of the given kind.
    pub fn new(name: impl Into<String>, kind: ExchangeKind) -> Self {
        Self {
            name: name.into(),
            kind,
            durable: true,
            auto_delete: false,
            arguments: Headers::new(),
        }
    }

    /// Describes a durable direct exchange.
    pub fn direct(name: impl Into<String>) -> Self {
        Self::new(name, ExchangeKind::Direct)
    }

    /// Describes a durable topic exchange.
    pub fn topic(name: impl Into<String>) -> Self {
        Self::new(name, ExchangeKind::Topic)
    }

    /// Describes a durable fanout exchange.
    pub fn fanout(name: impl Into<String>) -> Self {
        Self::new(name, ExchangeKind::Fanout)
    }

    /// Describes a durable headers exchange.
    pub fn headers(name: impl Into<String>) -> Self {
        Self::new(name, ExchangeKind::Headers)
    }

    /// Hands on to another exchange what no binding of this one takes. Default: it is returned to
    /// a mandatory publisher, and dropped otherwise.
    ///
    /// The other exchange routes with the same key; it may have an alternate of its own. One that
    /// does not exist takes nothing, and is no error.
    pub fn alternate_exchange(self, exchange: impl Into<String>) -> Self {
        self.argument("alternate-exchange", exchange.into())
    }

    /// Makes the exchange vanish at a broker restart. Default: durable.
    pub fn transient(mut self) -> Self {
        self.durable = false;
        self
    }

    /// Makes the exchange vanish with the last binding that leads from it. Default: it stays.
    pub fn auto_delete(mut self) -> Self {
        self.auto_delete = true;
        self
    }

    /// Sets an argument that has no method of its own.
    pub fn argument(
        mut self,
        name: impl Into<String>,
        value: impl Into<crate::message::HeaderValue>,
    ) -> Self {
        self.arguments.insert(name, value);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("exchange", &self.name)?;
        if self.name.starts_with("amq.") {
            return Err(Error::invalid(
                "exchange",
                &self.name,
                "is reserved: `amq.` belongs to the broker",
            ));
        }
        Ok(())
    }
}
