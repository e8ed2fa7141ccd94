//! A message on the ladder: its address and its time, beside everything that it is anyway.

use bytes::Bytes;

use super::ladder::Hop;
use crate::{
    message::{Envelope, HeaderValue, Headers, Properties, Received},
    publish::Draft,
    transport::Outgoing,
};

const EXCHANGE: &str = "x-schedule-exchange";
const ROUTING_KEY: &str = "x-schedule-routing-key";
const DUE_AT: &str = "x-schedule-due-at";
const CONTENT_TYPE: &str = "x-schedule-content-type";

/// The content type on the ladder, where nobody may try to decode the body.
const WRAPPED: &str = "application/octet-stream";
/// The content type of a message that says none.
const DEFAULT: &str = "application/json";

/// Where a message is to go, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    /// Milliseconds since the epoch.
    pub(super) due_ms: i64,
    pub(super) content_type: String,
}

impl Label {
    /// Reads the label of a message that came out of a ladder (wire contract, section 10); else
    /// says what is wrong with it.
    pub(super) fn read(headers: &Headers) -> Result<Self, String> {
        let text = |name: &str| headers.get(name).and_then(HeaderValue::lenient_text);
        let present = |name: &str| match headers.get(name) {
            // An empty exchange is the default one, and an empty key is a key.
            Some(HeaderValue::Text(text)) => Ok(text.clone()),
            _ => text(name).ok_or_else(|| format!("header `{name}` is missing or no text")),
        };
        let due = headers.get(DUE_AT).and_then(HeaderValue::lenient_i64);
        Ok(Self {
            exchange: present(EXCHANGE)?,
            routing_key: present(ROUTING_KEY)?,
            due_ms: due.ok_or_else(|| format!("header `{DUE_AT}` is missing or no number"))?,
            content_type: text(CONTENT_TYPE).unwrap_or_else(|| DEFAULT.to_owned()),
        })
    }

    /// Writes the label onto the envelope of a message that enters a ladder.
    pub(super) fn write(&self, envelope: Envelope) -> Envelope {
        envelope
            .header(EXCHANGE, self.exchange.as_str())
            .header(ROUTING_KEY, self.routing_key.as_str())
            .header(DUE_AT, self.due_ms)
            .header(CONTENT_TYPE, self.content_type.as_str())
    }
}

fn without_label(envelope: Envelope) -> Envelope {
    [EXCHANGE, ROUTING_KEY, DUE_AT, CONTENT_TYPE]
        .into_iter()
        .fold(envelope, Envelope::without_header)
}

/// A message as it enters the ladder.
pub(super) fn wrapped(label: &Label, hop: Hop, envelope: Envelope, body: Bytes) -> Draft {
    let envelope = label.write(envelope);
    draft(hop.exchange, hop.routing_key, WRAPPED.to_owned(), envelope, body)
}

/// A message that is due when it is scheduled.
pub(super) fn due(label: Label, envelope: Envelope, body: Bytes) -> Draft {
    draft(label.exchange, label.routing_key, label.content_type, envelope, body)
}

fn draft(
    exchange: String,
    routing_key: String,
    content_type: String,
    envelope: Envelope,
    body: Bytes,
) -> Draft {
    let content_type = Some(content_type);
    let properties = Properties { content_type, persistent: true, ..Properties::default() };
    Draft { exchange, routing_key, mandatory: true, envelope, properties, body }
}

/// The copy of a message for its next rung: everything is kept.
pub(super) fn to_rung(received: &Received, hop: Hop) -> Outgoing {
    let content_type = received.properties.content_type.clone();
    copy(received, hop.exchange, hop.routing_key, content_type, &received.envelope)
}

/// The message as it was scheduled, for its target. It begins its life there: attempt 1.
pub(super) fn unwrapped(received: &Received, label: Label) -> Outgoing {
    let Label { exchange, routing_key, content_type, .. } = label;
    let envelope = without_label(received.envelope.clone()).with_attempt(1);
    copy(received, exchange, routing_key, Some(content_type), &envelope)
}

fn copy(
    received: &Received,
    exchange: String,
    routing_key: String,
    content_type: Option<String>,
    envelope: &Envelope,
) -> Outgoing {
    let properties = Properties {
        content_type,
        persistent: true,
        ..received.properties.for_republish().carrying(envelope)
    };
    Outgoing { exchange, routing_key, mandatory: true, properties, body: received.body.clone() }
}
