//! A message that could be replayed, and what is known about it.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};

use crate::message::{Envelope, HeaderValue, Headers, Received, ReplayStamp};

/// A message in a dead-letter or parked queue.
#[derive(Debug)]
pub struct ReplayCandidate {
    received: Received,
    age: Duration,
}

impl ReplayCandidate {
    pub(super) fn new(received: Received, now: DateTime<Utc>) -> Self {
        let first_seen = received.envelope.first_seen_at();
        let age = first_seen.and_then(|at| (now - at).to_std().ok()).unwrap_or_default();
        Self { received, age }
    }

    pub(super) fn received(&self) -> &Received {
        &self.received
    }

    /// Returns the identity of the message. One that was published without any has another id
    /// each time it is looked at.
    #[must_use]
    pub fn id(&self) -> &str {
        self.envelope().id()
    }

    /// Returns the name of the message kind.
    #[must_use]
    pub fn message_type(&self) -> &str {
        self.envelope().message_type()
    }

    /// Returns the handling attempt that failed, from 1.
    #[must_use]
    pub fn attempt(&self) -> i32 {
        self.envelope().attempt()
    }

    /// Returns when the message was first published; now, where it does not say.
    #[must_use]
    pub fn first_seen_at(&self) -> Option<DateTime<Utc>> {
        self.envelope().first_seen_at()
    }

    /// Returns how long ago the message was first published; zero where it does not say.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Returns why a consumer set the message aside. None for one that the broker dead-lettered:
    /// see [`died`](Self::died).
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.envelope().error()
    }

    /// Returns why the broker dead-lettered the message, by itself or because it was rejected
    /// there. None for one that a consumer set aside: see [`error`](Self::error).
    #[must_use]
    pub fn died(&self) -> Option<Death> {
        if self.error().is_some() { None } else { Death::read(self.headers()) }
    }

    /// Returns the stamp of the last replay; none if the message was never replayed.
    #[must_use]
    pub fn replayed(&self) -> Option<ReplayStamp> {
        // The wire headers, since the application's lack the names that old members used.
        ReplayStamp::read(&self.received.properties.headers)
    }

    /// Returns the application's headers, with those that the broker added.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.envelope().headers()
    }

    /// Returns the envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.received.envelope
    }

    /// Returns the content type of the body.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.received.properties.content_type.as_deref()
    }

    /// Returns the body as it is, undecoded.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.received.body
    }
}

/// Why and where the broker dead-lettered a message: the latest entry of its `x-death` header.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Death {
    /// The queue it left.
    pub queue: String,
    /// `rejected`, `expired`, `maxlen` or `delivery_limit`.
    pub reason: String,
    /// How often it left that queue for that reason.
    pub count: i64,
    /// The exchange it had been published to; empty for the default exchange.
    pub exchange: String,
    /// The routing keys it had been published with.
    pub routing_keys: Vec<String>,
}

impl Death {
    /// Reads leniently: an entry without a queue is none, everything else has a default.
    pub(super) fn read(headers: &Headers) -> Option<Self> {
        let Some(HeaderValue::List(deaths)) = headers.get("x-death") else { return None };
        let Some(HeaderValue::Table(latest)) = deaths.first() else { return None };
        let text = |name: &str| latest.get(name).and_then(HeaderValue::lenient_text);
        let routing_keys = match latest.get("routing-keys") {
            Some(HeaderValue::List(keys)) => {
                keys.iter().filter_map(HeaderValue::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        Some(Self {
            queue: text("queue")?,
            reason: text("reason").unwrap_or_default(),
            count: latest.get("count").and_then(HeaderValue::lenient_i64).unwrap_or(1),
            exchange: text("exchange").unwrap_or_default(),
            routing_keys,
        })
    }
}
