//! Messages as the broker keeps them.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::reply;
use crate::{
    error::Result,
    message::{HeaderValue, Properties},
    transport::Outgoing,
};

/// The longest TTL and queue expiry that RabbitMQ takes: ten years.
pub(super) const LONGEST_TTL_MS: i64 = 315_360_000_000;

/// A message, independent of the queue it is in. Body and properties are the publisher's, verbatim.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) exchange: String,
    /// The key it was published with, then those of its `CC` and `BCC` headers.
    pub(super) routing_keys: Vec<String>,
    pub(super) properties: Properties,
    pub(super) body: Bytes,
}

impl Message {
    /// Accepts a message from a publisher.
    ///
    /// `CC` and `BCC` are further routing keys, and `BCC` is taken off ("Sender-selected
    /// Distribution"). They are modelled because they may arrive in any message and would
    /// otherwise be ignored in silence.
    pub(super) fn accept(outgoing: Outgoing) -> Result<Self> {
        let Outgoing { exchange, routing_key, mandatory: _, mut properties, body } = outgoing;
        if let Some(text) = &properties.expiration {
            parse_expiration(text)?;
        }
        let mut routing_keys = vec![routing_key];
        for header in ["CC", "BCC"] {
            routing_keys.extend(further_keys(&properties, header)?);
        }
        properties.headers.remove("BCC");
        Ok(Self { exchange, routing_keys, properties, body })
    }

    /// The message's own TTL. The text was checked when the message was accepted.
    pub(super) fn ttl(&self) -> Option<Duration> {
        parse_expiration(self.properties.expiration.as_deref()?).ok()
    }

    pub(super) fn routing_key(&self) -> &str {
        self.routing_keys.first().map_or("", String::as_str)
    }
}

/// Reads the routing keys of a `CC` or `BCC` header.
pub(super) fn further_keys(properties: &Properties, header: &str) -> Result<Vec<String>> {
    match properties.headers.get(header) {
        None => Ok(Vec::new()),
        Some(HeaderValue::List(keys)) => {
            Ok(keys.iter().filter_map(HeaderValue::as_str).map(str::to_owned).collect())
        }
        Some(other) => Err(reply::precondition_failed(format_args!(
            "invalid message: {{unacceptable_type_in_header,\"{header}\",{}}}",
            type_name(other)
        ))),
    }
}

/// AMQP's name of a value's type, as RabbitMQ prints it.
pub(super) fn type_name(value: &HeaderValue) -> &'static str {
    match value {
        HeaderValue::Bool(_) => "bool",
        HeaderValue::Int(_) => "signedint",
        HeaderValue::Long(_) => "long",
        HeaderValue::Double(_) => "double",
        HeaderValue::Decimal { .. } => "decimal",
        HeaderValue::Text(_) => "longstr",
        HeaderValue::Bytes(_) => "binary",
        HeaderValue::Timestamp(_) => "timestamp",
        HeaderValue::List(_) => "array",
        HeaderValue::Table(_) => "table",
        HeaderValue::Null => "void",
    }
}

/// Reads the `expiration` property: milliseconds as text, up to ten years.
fn parse_expiration(text: &str) -> Result<Duration> {
    let refuse = |problem: String| {
        reply::precondition_failed(format_args!("invalid expiration '{text}': {problem}"))
    };
    let sign = usize::from(text.starts_with(['+', '-']));
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(refuse("no_integer".to_owned()));
    }
    let (number, rest) = text.split_at(sign + digits);
    if !rest.is_empty() {
        return Err(refuse(format!("{{leftover_string,\"{rest}\"}}")));
    }
    match number.parse::<i64>() {
        Ok(ms) if ms < 0 => Err(refuse(format!("{{value_negative,{ms}}}"))),
        Ok(ms) if ms <= LONGEST_TTL_MS => Ok(Duration::from_millis(ms.unsigned_abs())),
        _ => Err(refuse(format!("{{value_too_large,{number}}}"))),
    }
}

/// A message in one queue.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) message: Message,
    /// From 0, and 0 in every queue without priorities.
    pub(super) priority: u8,
    /// Its place in the order of arrival.
    pub(super) position: u64,
    /// When it expires, once it is at the head.
    pub(super) expires: Option<Instant>,
    /// How many deliveries did not end in an ack or a reject.
    pub(super) returns: u32,
}
