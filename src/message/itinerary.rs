//! The self-contained slip: one JSON header that lists the stops ahead and the stops done.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize, de::Error as _};
use serde_json::{Map, Value};

use super::{HeaderValue, Headers, header};

/// A place that a message goes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    #[serde(default, deserialize_with = "text")]
    exchange: String,
    #[serde(rename = "routingKey", default, deserialize_with = "text")]
    routing_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "filled")]
    name: Option<String>,
    #[serde(
        rename = "completedAt",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "filled"
    )]
    completed_at: Option<String>,
}

impl Stop {
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

    /// Returns the name, where the stop has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns when the stop was done, where that is readable; whole seconds.
    #[must_use]
    pub fn completed_at(&self) -> Option<DateTime<Utc>> {
        let text = self.completed_at.as_deref()?;
        DateTime::parse_from_rfc3339(text).ok().map(|at| at.to_utc())
    }
}

/// Prints the name, else `{exchange}/{routing key}`.
impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "{}/{}", self.exchange, self.routing_key),
        }
    }
}

/// A route that travels in the message: the stops ahead, and the stops done with their times.
///
/// An itinerary is a value: each method returns a new one. On the wire it is the header
/// `acemq-routing-slip` (wire contract, section 11.2).
///
/// # Examples
///
/// ```
/// use acemq::Itinerary;
///
/// let route = Itinerary::new().then("underwriting", "policy.underwrite").then("billing", "policy.bill");
/// let rest = route.advance(chrono::Utc::now());
/// assert_eq!(rest.next().unwrap().routing_key(), "policy.bill");
/// assert_eq!(rest.done().len(), 1);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Itinerary {
    #[serde(default, deserialize_with = "listed")]
    steps: Vec<Stop>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "listed")]
    done: Vec<Stop>,
}

impl Itinerary {
    /// The header that carries an itinerary.
    pub const HEADER: &'static str = header::ROUTING_SLIP;

    /// Creates an itinerary without stops.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a stop at the end.
    #[must_use]
    pub fn then(self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        self.with_stop(exchange.into(), routing_key.into(), None)
    }

    /// Adds a named stop at the end; an empty name is none.
    #[must_use]
    pub fn then_named(
        self,
        name: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        let name = Some(name.into()).filter(|name| !name.is_empty());
        self.with_stop(exchange.into(), routing_key.into(), name)
    }

    fn with_stop(mut self, exchange: String, routing_key: String, name: Option<String>) -> Self {
        self.steps.push(Stop { exchange, routing_key, name, completed_at: None });
        self
    }

    /// Moves past the current stop, which is stamped with `at` in whole seconds. A finished
    /// itinerary stays as it is.
    #[must_use]
    pub fn advance(&self, at: DateTime<Utc>) -> Self {
        let mut next = self.clone();
        if !next.steps.is_empty() {
            let mut stop = next.steps.remove(0);
            stop.completed_at = Some(at.to_rfc3339_opts(SecondsFormat::Secs, true));
            next.done.push(stop);
        }
        next
    }

    /// Returns the stop to go to: the current one, none when finished.
    #[must_use]
    pub fn next(&self) -> Option<&Stop> {
        self.steps.first()
    }

    /// Returns whether no stop is left. An itinerary without stops is finished.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the stops that remain, the current one first.
    #[must_use]
    pub fn remaining(&self) -> &[Stop] {
        &self.steps
    }

    /// Returns the stops that are done, oldest first.
    #[must_use]
    pub fn done(&self) -> &[Stop] {
        &self.done
    }

    /// Writes the value of the header: compact JSON.
    #[must_use]
    pub fn to_header(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the itinerary from a message's headers; none where the header is absent or empty.
    ///
    /// # Errors
    ///
    /// [`InvalidItinerary`] if the header is present and cannot be read. Reading it again cannot
    /// make it valid, so the message belongs in the dead-letter queue at once.
    pub fn from(headers: &Headers) -> Result<Option<Self>, InvalidItinerary> {
        let Some(value) = headers.get(Self::HEADER) else { return Ok(None) };
        match value.lenient_text() {
            Some(text) => Self::parse(&text).map(Some),
            None if matches!(value, HeaderValue::List(_) | HeaderValue::Table(_)) => {
                Err(InvalidItinerary { problem: "it is not text".into() })
            }
            None => Ok(None),
        }
    }

    fn parse(text: &str) -> Result<Self, InvalidItinerary> {
        // By way of a map: serde takes an array for a struct, and a list is not a slip.
        serde_json::from_str::<Map<String, Value>>(text)
            .and_then(|object| Self::deserialize(Value::Object(object)))
            .map_err(|error| InvalidItinerary { problem: error.to_string() })
    }
}

/// A message carries a slip that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header `acemq-routing-slip` is not an itinerary: {problem}")]
pub struct InvalidItinerary {
    problem: String,
}

/// Null is an empty list: Go writes it for a finished itinerary.
fn listed<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<Stop>, D::Error> {
    let stops = Option::<Vec<Map<String, Value>>>::deserialize(input)?.unwrap_or_default();
    let read = |stop| Stop::deserialize(Value::Object(stop)).map_err(D::Error::custom);
    stops.into_iter().map(read).collect()
}

/// Null is empty text.
fn text<'de, D: serde::Deserializer<'de>>(input: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

/// Empty text is absent.
fn filled<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(input)?.filter(|text| !text.is_empty()))
}

/// Changing what remains of a route.
impl Itinerary {
    /// Puts a stop before those that remain.
    #[must_use]
    pub fn insert_next(
        mut self,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        self.steps.insert(0, Stop { exchange, routing_key, name: None, completed_at: None });
        self
    }

    /// Leaves out the stops that remain and are not wanted.
    #[must_use]
    pub fn keep(mut self, wanted: impl FnMut(&Stop) -> bool) -> Self {
        self.steps.retain(wanted);
        self
    }

    /// Puts the stops of another route in the place of those that remain.
    #[must_use]
    pub fn replace_remaining(mut self, other: &Itinerary) -> Self {
        self.steps.clone_from(&other.steps);
        self
    }
}
