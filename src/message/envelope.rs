//! The envelope: a message's identity and history, carried in headers.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{HeaderValue, Headers, Properties, RoutingSlip, header};
use crate::error::{Error, Result};

/// The metadata of a message: what it is, what caused it, and how often it was tried.
///
/// An envelope made with [`Envelope::new`] leaves out what the publish fills in: the type defaults
/// to the routing key, the correlation to the id, the first-seen time to now and the origin to the
/// connection's. A received envelope has all of them.
///
/// # Examples
///
/// ```
/// use acemq::Envelope;
///
/// let placed = Envelope::of("order.placed").correlation("order-42").header("x-tenant", "acme");
/// let raised = placed.causing("invoice.raised");
/// assert_eq!(raised.causation_id(), Some(placed.id()));
/// assert_eq!(raised.correlation_id(), "order-42");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    id: String,
    message_type: String,
    version: i32,
    correlation_id: String,
    causation_id: String,
    attempt: i32,
    first_seen_ms: Option<i64>,
    origin: String,
    error: String,
    claim: String,
    route: Option<RoutingSlip>,
    headers: Headers,
    /// Engine headers of a newer member of the family: invisible, but carried along.
    unknown: Headers,
}

/// The namespace of the ids of hops.
const HOPS: Uuid = Uuid::from_u128(0x6f2c_9d0e_51b7_4c63_9a0e_acec_0b0a_7e11);

impl Default for Envelope {
    fn default() -> Self {
        Self::new()
    }
}

/// What building an envelope and reading one have in common: the parts with a default.
impl Envelope {
    /// Creates an envelope with a fresh id (UUID v4), version 1 and attempt 1.
    #[must_use]
    pub fn new() -> Self {
        Self {
            id: Uuid::new_v4().to_string(),
            message_type: String::new(),
            version: 1,
            correlation_id: String::new(),
            causation_id: String::new(),
            attempt: 1,
            first_seen_ms: None,
            origin: String::new(),
            error: String::new(),
            claim: String::new(),
            route: None,
            headers: Headers::new(),
            unknown: Headers::new(),
        }
    }

    /// Creates an envelope for a message of the given type.
    #[must_use]
    pub fn of(message_type: impl Into<String>) -> Self {
        Self::new().message_type_named(message_type)
    }

    pub(crate) fn message_type_named(mut self, message_type: impl Into<String>) -> Self {
        self.message_type = message_type.into();
        self
    }

    /// Sets the id. Default: a fresh UUID v4; an empty text keeps it.
    ///
    /// The id is what idempotent consumers recognise a message by, over every retry and replay.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        let id = id.into();
        if !id.is_empty() {
            self.id = id;
        }
        self
    }

    /// Sets the version of the payload's schema. Default and minimum: 1.
    #[must_use]
    pub fn version(mut self, version: i32) -> Self {
        self.version = version.max(1);
        self
    }

    /// Sets the identity of the business action. Default: the id.
    #[must_use]
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = id.into();
        self
    }

    /// Sets the id of the message that caused this one. Default: none.
    #[must_use]
    pub fn caused_by(mut self, id: impl Into<String>) -> Self {
        self.causation_id = id.into();
        self
    }

    /// Sets which handling attempt this is. Default and minimum: 1.
    #[must_use]
    pub fn with_attempt(mut self, attempt: i32) -> Self {
        self.attempt = attempt.max(1);
        self
    }

    /// Sets when the message was first published, in milliseconds. Default: when it is published.
    #[must_use]
    pub fn first_seen(mut self, at: DateTime<Utc>) -> Self {
        self.first_seen_ms = Some(at.timestamp_millis());
        self
    }

    /// Sets who publishes. Default: `{client name}@{host}` of the connection.
    #[must_use]
    pub fn with_origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = origin.into();
        self
    }

    /// Sets why the message was set aside. Default: none.
    #[must_use]
    pub fn with_error(mut self, error: impl Into<String>) -> Self {
        self.error = error.into();
        self
    }

    /// Sets an application's reference, for instance the URL of a large payload. Default: none.
    #[must_use]
    pub fn with_claim(mut self, claim: impl Into<String>) -> Self {
        self.claim = claim.into();
        self
    }

    /// Sets the slip that leads the message through a pipeline. Default: none.
    #[must_use]
    pub fn with_route(mut self, route: RoutingSlip) -> Self {
        self.route = Some(route);
        self
    }

    /// Takes the slip off, in both forms.
    pub(crate) fn without_slip(mut self) -> Self {
        self.route = None;
        self.without_header(header::ROUTING_SLIP)
    }

    /// Sets an application header.
    ///
    /// Names that start with `x-acemq-` belong to the engine: publishing refuses them.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Removes an application header.
    #[must_use]
    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    /// Creates the envelope of a message that this one causes: a fresh id, attempt 1, the same
    /// correlation, this id as the causation. Application headers and the claim are not inherited.
    #[must_use]
    pub fn causing(&self, message_type: impl Into<String>) -> Self {
        Self {
            correlation_id: self.correlation_id().to_owned(),
            causation_id: self.id.clone(),
            origin: self.origin.clone(),
            ..Self::of(message_type)
        }
    }

    /// Creates the envelope of this message's next hop, along a pipeline or a routing slip: the
    /// business action goes on, with everything that belongs to it, in a new message (wire contract,
    /// section 11.3).
    ///
    /// The id is new but the same for every repetition of the hop `to`, so that a hop that is
    /// published twice is recognised as one.
    pub(crate) fn next_hop(&self, to: &str) -> Self {
        let seed = format!("{}\n{to}", self.id);
        Self {
            id: Uuid::new_v5(&HOPS, seed.as_bytes()).to_string(),
            causation_id: self.id.clone(),
            correlation_id: self.correlation_id().to_owned(),
            attempt: 1,
            error: String::new(),
            ..self.clone()
        }
    }

    /// Creates the envelope of the next handling attempt: everything kept, the attempt one higher.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        Self { attempt: self.attempt.saturating_add(1), ..self.clone() }
    }
}

/// Reading.
impl Envelope {
    /// Returns the identity of the message.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the name of the message kind; empty before publishing where none was set.
    #[must_use]
    pub fn message_type(&self) -> &str {
        &self.message_type
    }

    /// Returns the version of the payload's schema, from 1.
    #[must_use]
    pub fn schema_version(&self) -> i32 {
        self.version
    }

    /// Returns the identity of the business action: the id where none was set.
    #[must_use]
    pub fn correlation_id(&self) -> &str {
        if self.correlation_id.is_empty() { &self.id } else { &self.correlation_id }
    }

    /// Returns the id of the message that caused this one.
    #[must_use]
    pub fn causation_id(&self) -> Option<&str> {
        present(&self.causation_id)
    }

    /// Returns which handling attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> i32 {
        self.attempt
    }

    /// Returns when the message was first published; none before that.
    #[must_use]
    pub fn first_seen_at(&self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_millis(self.first_seen_ms?)
    }

    /// Returns who published the message.
    #[must_use]
    pub fn origin(&self) -> Option<&str> {
        present(&self.origin)
    }

    /// Returns why the message was set aside, on dead-lettered and parked messages.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        present(&self.error)
    }

    /// Returns the application's reference.
    #[must_use]
    pub fn claim(&self) -> Option<&str> {
        present(&self.claim)
    }

    /// Returns the slip that leads the message through a pipeline.
    #[must_use]
    pub fn route(&self) -> Option<&RoutingSlip> {
        self.route.as_ref()
    }

    /// Returns the application's headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    pub(crate) fn first_seen_ms(&self) -> Option<i64> {
        self.first_seen_ms
    }
}

/// The wire.
impl Envelope {
    /// Fills in what publishing decides: the type, the first-seen time and the origin.
    pub(crate) fn completed(
        mut self,
        routing_key: &str,
        now_ms: i64,
        origin: Option<&str>,
    ) -> Self {
        if self.message_type.is_empty() {
            routing_key.clone_into(&mut self.message_type);
        }
        self.first_seen_ms.get_or_insert(now_ms);
        if self.origin.is_empty()
            && let Some(origin) = origin
        {
            origin.clone_into(&mut self.origin);
        }
        self
    }

    /// Checks the application's headers before a publish.
    pub(crate) fn check(&self) -> Result<()> {
        for (name, _) in self.headers.iter() {
            if header::is_reserved(name) {
                return Err(Error::invalid(
                    "header",
                    name,
                    "is reserved: names that start with `x-acemq-` belong to the engine",
                ));
            }
        }
        Ok(())
    }

    /// Writes the envelope as headers. Broker-owned headers of a received message are left out.
    pub(crate) fn to_headers(&self) -> Headers {
        let mut headers = self.headers.clone();
        headers.retain(|name| !header::is_broker_owned(name));
        headers.extend(self.unknown.clone());
        headers.insert(header::ID, self.id.as_str());
        // Java writes this word where the routing key is empty too, and is the strictest reader.
        headers.insert(header::TYPE, present(&self.message_type).unwrap_or("message"));
        headers.insert(header::VERSION, self.version);
        headers.insert(header::CORRELATION, self.correlation_id());
        headers.insert(header::ATTEMPT, self.attempt);
        if let Some(first_seen) = self.first_seen_ms {
            headers.insert(header::FIRST_SEEN, first_seen);
        }
        for (name, text) in [
            (header::CAUSATION, &self.causation_id),
            (header::ORIGIN, &self.origin),
            (header::ERROR, &self.error),
            (header::CLAIM, &self.claim),
        ] {
            if !text.is_empty() {
                headers.insert(name, text.as_str());
            }
        }
        if let Some(route) = &self.route {
            route.write(&mut headers);
        }
        headers
    }

    /// Reads an envelope leniently: a bad header takes its default, nothing is ever an error.
    pub(crate) fn from_properties(properties: &Properties, routing_key: &str, now_ms: i64) -> Self {
        let headers = &properties.headers;
        let text = |name: &str| headers.get(name).and_then(HeaderValue::lenient_text);
        let number = |name: &str| headers.get(name).and_then(HeaderValue::lenient_i64);
        let counter =
            |name: &str| number(name).map_or(1, |n| i32::try_from(n.max(1)).unwrap_or(i32::MAX));
        let id = text(header::ID)
            .or_else(|| properties.message_id.clone().filter(|id| !id.is_empty()))
            .unwrap_or_else(|| Uuid::new_v4().to_string());
        Self {
            message_type: text(header::TYPE).unwrap_or_else(|| routing_key.to_owned()),
            version: counter(header::VERSION),
            correlation_id: text(header::CORRELATION).unwrap_or_else(|| id.clone()),
            causation_id: text(header::CAUSATION).unwrap_or_default(),
            attempt: counter(header::ATTEMPT),
            first_seen_ms: Some(number(header::FIRST_SEEN).unwrap_or(now_ms)),
            origin: text(header::ORIGIN).unwrap_or_default(),
            error: text(header::ERROR).unwrap_or_default(),
            claim: text(header::CLAIM).unwrap_or_default(),
            route: RoutingSlip::read(headers),
            headers: part(headers, |name| !header::is_reserved(name)),
            unknown: part(headers, |name| header::is_reserved(name) && !header::is_known(name)),
            id,
        }
    }

    /// Whether a message carries an identity of its own; without one the id is new each delivery.
    pub(crate) fn has_identity(properties: &Properties) -> bool {
        properties.headers.get(header::ID).and_then(HeaderValue::lenient_text).is_some()
            || properties.message_id.as_ref().is_some_and(|id| !id.is_empty())
    }
}

/// The headers whose names are wanted.
fn part(headers: &Headers, wanted: impl Fn(&str) -> bool) -> Headers {
    let chosen = headers.iter().filter(|(name, _)| wanted(name));
    chosen.map(|(name, value)| (name, value.clone())).collect()
}

fn present(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
