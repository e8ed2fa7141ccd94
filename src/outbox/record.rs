//! What stands in an outbox: a message with its address, before, during and after its publish.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::{
    clock::Clock,
    consume::NextHop,
    error::{Error, Result},
    message::{Envelope, HeaderValue, Headers, Properties},
    store::{check_short_text, headers_json},
    telemetry::TraceContext,
};

/// The largest header table that one frame of a broker's default size carries.
const MAX_HEADER_BYTES: usize = 128 * 1024 - 1024;

/// A message that is to be published once the transaction that added it has committed.
///
/// The record's id is its envelope's id and becomes the AMQP message id, the same over every
/// attempt, so that consumers recognise a duplicate by it. The payload leaves the outbox byte for
/// byte as it came in.
///
/// # Examples
///
/// ```
/// use acemq::outbox::OutboxRecord;
///
/// # fn main() -> Result<(), acemq::Error> {
/// let record = OutboxRecord::json("orders", "order.placed", &42)?
///     .header("x-tenant", "acme")
///     .ordering_key("order-42");
/// assert_eq!(record.payload().as_ref(), b"42");
/// assert_eq!(record.content_type(), "application/json");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a record does nothing until it is added to an outbox"]
pub struct OutboxRecord {
    exchange: String,
    routing_key: String,
    content_type: String,
    payload: Bytes,
    envelope: Envelope,
    ordering_key: Option<String>,
    unique_key: Option<String>,
    available_at: Option<DateTime<Utc>>,
}

/// Building.
impl OutboxRecord {
    /// Creates a record whose payload is `payload` as JSON, with content type `application/json`.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if the payload cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
        payload: &T,
    ) -> Result<Self> {
        let content_type = "application/json";
        let payload = serde_json::to_vec(payload).map_err(|error| Error::Codec {
            action: "encode",
            content_type: content_type.to_owned(),
            source: error.into(),
        })?;
        Ok(Self::bytes(exchange, routing_key, content_type, payload))
    }

    /// Creates a record from bytes, which are never looked at.
    pub fn bytes(
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
        content_type: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            content_type: content_type.into(),
            payload: payload.into(),
            envelope: Envelope::new(),
            ordering_key: None,
            unique_key: None,
            available_at: None,
        }
    }

    /// Sets the whole envelope, id and headers included. Default: a fresh one.
    ///
    /// Inside a handler, `message.envelope().causing("invoice.raised")` keeps the correlation.
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = envelope;
        self
    }

    /// Sets an application header. Names that start with `x-acemq-` are refused when the record
    /// is added.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.envelope = self.envelope.header(name, value);
        self
    }

    /// Sets the name of the message kind. Default: the routing key.
    pub fn message_type(mut self, message_type: impl Into<String>) -> Self {
        self.envelope = self.envelope.message_type_named(message_type);
        self
    }

    /// Sets the key whose records go out in order, one at a time. Default, and empty: no order.
    ///
    /// See the [module](crate::outbox#order) for what order means.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into()).filter(|key| !key.is_empty());
        self
    }

    /// Sets a key that at most one record of the outbox may have. Default, and empty: none.
    ///
    /// Adding a second record with the same key stores nothing and is not an error. The key is
    /// free again once its record has been purged.
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into()).filter(|key| !key.is_empty());
        self
    }

    /// Sets the time before which the record is not published. Default: at once.
    ///
    /// It is compared with the database's clock. A record with an ordering key holds back the
    /// later ones of its key until then.
    pub fn available_at(mut self, at: DateTime<Utc>) -> Self {
        self.available_at = Some(at);
        self
    }
}

/// The next message of a [`Pipeline`](crate::Pipeline), which goes out once the step's work is
/// committed.
impl From<NextHop> for OutboxRecord {
    fn from(hop: NextHop) -> Self {
        let NextHop { exchange, routing_key, envelope, content_type, body } = hop;
        Self::bytes(exchange, routing_key, content_type, body).envelope(envelope)
    }
}

/// Reading.
impl OutboxRecord {
    /// Returns the id: the envelope's, which becomes the AMQP message id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.envelope.id()
    }

    /// Returns the exchange to publish to; empty for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// Returns the routing key to publish with.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.routing_key
    }

    /// Returns the content type of the payload.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Returns the envelope.
    #[must_use]
    pub fn get_envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Returns the ordering key.
    #[must_use]
    pub fn get_ordering_key(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    /// Returns the unique key.
    #[must_use]
    pub fn get_unique_key(&self) -> Option<&str> {
        self.unique_key.as_deref()
    }

    /// Returns the time before which the record is not published; none means at once.
    ///
    /// On a claimed record it is none: the time has come.
    #[must_use]
    pub fn get_available_at(&self) -> Option<DateTime<Utc>> {
        self.available_at
    }
}

/// The stored form.
impl OutboxRecord {
    /// Completes the envelope and writes it, with the application's headers and the trace context
    /// of the work that runs now, as JSON text that keeps every value's type: what a store puts
    /// into its headers column.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the record could never be published: a name over 255 bytes or
    /// with a NUL character, a reserved header, or headers larger than a frame.
    pub fn stored_headers(&self) -> Result<String> {
        self.check_texts()?;
        self.envelope.check()?;
        let now_ms = Clock::System.now_ms();
        let envelope = TraceContext::stamp(self.envelope.clone());
        let headers = envelope.completed(&self.routing_key, now_ms, None).to_headers();
        check_header_names(&headers)?;
        let size = headers.encoded_len();
        if size > MAX_HEADER_BYTES {
            let reason = format!("take up to {size} bytes; one frame holds {MAX_HEADER_BYTES}");
            return Err(Error::invalid("headers", headers.len(), reason));
        }
        Ok(headers_json::encode(&headers))
    }

    /// Sets the envelope from what [`stored_headers`](Self::stored_headers) wrote.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if the text was not written by it. A store should then hand the record out
    /// with [`ClaimedRecord::damaged`](super::ClaimedRecord::damaged), so that it fails alone.
    pub fn with_stored_headers(mut self, text: &str) -> Result<Self> {
        self.read_stored_headers(text)?;
        Ok(self)
    }

    /// Sets the envelope; leaves the record as it is if the text cannot be read.
    pub(super) fn read_stored_headers(&mut self, text: &str) -> Result<()> {
        let headers = headers_json::decode(text).map_err(|source| Error::Codec {
            action: "decode",
            content_type: "stored outbox headers".to_owned(),
            source,
        })?;
        let message_id = Some(self.id().to_owned());
        let properties = Properties { headers, message_id, ..Properties::default() };
        let now_ms = Clock::System.now_ms();
        self.envelope = Envelope::from_properties(&properties, &self.routing_key, now_ms);
        Ok(())
    }

    fn check_texts(&self) -> Result<()> {
        check_short_text("exchange", &self.exchange)?;
        check_short_text("routing_key", &self.routing_key)?;
        check_short_text("content_type", &self.content_type)?;
        check_short_text("id", self.id())?;
        check_short_text("ordering_key", self.ordering_key.as_deref().unwrap_or_default())?;
        check_short_text("unique_key", self.unique_key.as_deref().unwrap_or_default())
    }
}

fn check_header_names(headers: &Headers) -> Result<()> {
    headers.iter().try_for_each(|(name, value)| {
        crate::topology::check_length("header name", name)?;
        match value {
            HeaderValue::Table(table) => check_header_names(table),
            _ => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> OutboxRecord {
        OutboxRecord::bytes("orders", "order.placed", "text/plain", "x")
    }

    #[test]
    fn a_record_that_can_never_be_published_is_refused_and_the_field_is_named() {
        let long = "é".repeat(128);
        let cases = [
            ("exchange", OutboxRecord::bytes(long.as_str(), "k", "t", "x")),
            ("routing_key", OutboxRecord::bytes("e", long.as_str(), "t", "x")),
            ("content_type", OutboxRecord::bytes("e", "k", long.as_str(), "x")),
            ("id", record().envelope(Envelope::new().with_id(long.as_str()))),
            ("ordering_key", record().ordering_key(long.as_str())),
            ("unique_key", record().unique_key(long.as_str())),
            ("header name", record().header(long.as_str(), "x")),
            ("header", record().header("x-acemq-id", "x")),
            ("headers", record().header("big", "x".repeat(200_000))),
            ("routing_key", OutboxRecord::bytes("e", "a\0b", "t", "x")),
        ];
        for (field, record) in cases {
            match record.stored_headers() {
                Err(Error::InvalidOption { option, .. }) => assert_eq!(option, field),
                other => panic!("{field}: {other:?}"),
            }
        }
        assert!(record().ordering_key("x".repeat(255)).stored_headers().is_ok());
    }

    #[test]
    fn an_envelope_comes_back_from_its_stored_form_with_everything_it_had() {
        let parent = Envelope::of("order.placed").header("ignored", 1);
        let envelope = parent
            .causing("invoice.raised")
            .version(3)
            .with_attempt(2)
            .with_origin("billing@host")
            .with_claim("s3://bucket/key")
            .header("traceparent", "00-1-2-03")
            .header("big", 1_i64 << 40);
        let before = record().envelope(envelope.clone()).message_type("invoice.raised");

        let text = before.stored_headers().unwrap();
        let after = record().with_stored_headers(&text).unwrap();

        let first_seen = after.get_envelope().first_seen_at().expect("stored when it was added");
        assert_eq!(after.get_envelope(), &envelope.first_seen(first_seen));
    }

    #[test]
    fn the_type_of_a_record_without_one_is_its_routing_key() {
        let text = record().stored_headers().unwrap();
        let after = record().with_stored_headers(&text).unwrap();
        assert_eq!(after.get_envelope().message_type(), "order.placed");
    }
}
