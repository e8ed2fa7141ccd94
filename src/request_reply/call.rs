//! The options of a call, and the message it sends.

use std::time::Duration;

use bytes::Bytes;
use tracing::{Span, field::Empty};

use crate::{
    clock::millis,
    error::{Error, Result},
    message::{Envelope, HeaderValue, Properties, header},
    publish::Draft,
};

/// The longest message TTL that RabbitMQ takes, in milliseconds.
const MAX_TTL_MS: u64 = u32::MAX as u64;

/// Options of a call; a plain [`Duration`] stands for the default options with that timeout.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use acemq::CallOptions;
///
/// let options = CallOptions::new()
///     .timeout(Duration::from_secs(2))
///     .message_type("price.requested")
///     .header("x-tenant", "acme")
///     .priority(5);
/// # let _ = options;
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until they are passed to a call"]
pub struct CallOptions {
    timeout: Duration,
    envelope: Envelope,
    priority: Option<u8>,
    persistent: bool,
    expires: bool,
}

impl CallOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            envelope: Envelope::new(),
            priority: None,
            persistent: true,
            expires: true,
        }
    }

    /// Limits the call from its start to its answer, the wait for a connection included. At least
    /// a millisecond. Default: 30 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets the type of the request. Default: the routing key.
    pub fn message_type(mut self, name: impl Into<String>) -> Self {
        self.envelope = self.envelope.message_type_named(name);
        self
    }

    /// Sets the version of the request's schema. Default: 1.
    pub fn version(mut self, version: i32) -> Self {
        self.envelope = self.envelope.version(version);
        self
    }

    /// Sets the id of the message that caused the request. Default: none.
    ///
    /// The request's own correlation is its id, by which the answer is found.
    pub fn caused_by(mut self, id: impl Into<String>) -> Self {
        self.envelope = self.envelope.caused_by(id);
        self
    }

    /// Sets an application header. Names that start with `x-acemq-` are refused.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.envelope = self.envelope.header(name, value);
        self
    }

    /// Sets the priority, for queues that have priorities. Default: none.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Lets the request be lost when the broker restarts. Default: it is persistent.
    pub fn transient(mut self) -> Self {
        self.persistent = false;
        self
    }

    /// Keeps the request in its queue after the call has timed out. Default: it expires with the
    /// call, so that nobody works for a caller who has gone.
    pub fn never_expires(mut self) -> Self {
        self.expires = false;
        self
    }

    pub(super) fn time_limit(&self) -> Duration {
        self.timeout
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.timeout < Duration::from_millis(1) {
            let value = format!("{:?}", self.timeout);
            return Err(Error::invalid("timeout", value, "leaves no time for an answer"));
        }
        Ok(())
    }

    /// The request as it goes out (wire contract, section 9.1): id and correlation are one fresh
    /// UUID, and the reply address is written twice.
    pub(super) fn draft(self, call: &Call, id: &str, reply_to: &str) -> Draft {
        let ttl = millis(self.timeout).min(MAX_TTL_MS);
        Draft {
            exchange: call.exchange.to_owned(),
            routing_key: call.routing_key.to_owned(),
            mandatory: true,
            envelope: self.envelope.with_id(id).correlation(id).header(header::REPLY_TO, reply_to),
            properties: Properties {
                content_type: Some(call.content_type.to_owned()),
                persistent: self.persistent,
                priority: self.priority,
                reply_to: Some(reply_to.to_owned()),
                expiration: self.expires.then(|| ttl.to_string()),
                ..Properties::default()
            },
            body: call.body.clone(),
        }
    }
}

impl Default for CallOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Duration> for CallOptions {
    fn from(timeout: Duration) -> Self {
        Self::new().timeout(timeout)
    }
}

/// What a call sends, and where to.
pub(super) struct Call<'a> {
    pub(super) exchange: &'a str,
    pub(super) routing_key: &'a str,
    pub(super) content_type: &'a str,
    pub(super) body: Bytes,
}

impl Call<'_> {
    /// The span of the call, from its start to its end (wire contract, section 18).
    pub(super) fn span(&self, id: &str) -> Span {
        let &Self { exchange, routing_key, .. } = self;
        let destination = if exchange.is_empty() { routing_key } else { exchange };
        tracing::info_span!(
            "request",
            otel.name = %format_args!("{destination} request"),
            otel.kind = "client",
            otel.status_code = Empty,
            messaging.system = "rabbitmq",
            messaging.operation = "request",
            messaging.destination.name = destination,
            messaging.rabbitmq.destination.routing_key = routing_key,
            messaging.message.id = id,
            messaging.acemq.outcome = Empty,
        )
    }
}
