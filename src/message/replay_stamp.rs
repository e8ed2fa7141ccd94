//! What a replay leaves on a message.

use chrono::{DateTime, SecondsFormat, Utc};

use super::{HeaderValue, Headers, header};

/// The stamp of the last replay: where the message came out of, when, and how often by now.
///
/// On the wire these are `acemq-replayed-from`, `acemq-replayed-at` and `acemq-replay-count`
/// (wire contract, section 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayStamp {
    from: String,
    at: Option<DateTime<Utc>>,
    count: i64,
}

impl ReplayStamp {
    /// Reads the stamp of a message; none if it was never replayed.
    #[must_use]
    pub fn read(headers: &Headers) -> Option<Self> {
        let from = headers.get(header::REPLAYED_FROM).and_then(HeaderValue::lenient_text)?;
        let at = headers.get(header::REPLAYED_AT).and_then(read_time);
        Some(Self { from, at, count: read_count(headers) })
    }

    /// Returns the queue that the message came out of.
    #[must_use]
    pub fn replayed_from(&self) -> &str {
        &self.from
    }

    /// Returns when, where that is readable.
    #[must_use]
    pub fn replayed_at(&self) -> Option<DateTime<Utc>> {
        self.at
    }

    /// Returns how often the message was replayed, from 1.
    #[must_use]
    pub fn count(&self) -> i64 {
        self.count
    }

    /// Turns the wire headers of a message read from the queue `from` into those of its replay.
    ///
    /// The stamp is set, broker-owned headers and the stamps' old names are removed. With
    /// [`Attempts::Reset`] the attempt is 1 again and `x-acemq-error` is cleared. Everything else
    /// stays, also engine headers that a newer member of the family may have added.
    pub(crate) fn stamp(
        mut headers: Headers,
        from: &str,
        at: DateTime<Utc>,
        attempts: Attempts,
    ) -> Headers {
        let count = read_count(&headers).saturating_add(1);
        headers.retain(|name| !header::is_broker_owned(name) && !header::is_legacy_replay(name));
        Self { from: from.to_owned(), at: Some(at), count }.write(&mut headers);
        if attempts == Attempts::Reset {
            headers.insert(header::ATTEMPT, 1);
            headers.remove(header::ERROR);
        }
        headers
    }

    /// Writes the stamp: whole seconds and `Z`.
    fn write(&self, headers: &mut Headers) {
        headers.insert(header::REPLAYED_FROM, self.from.as_str());
        if let Some(at) = self.at {
            headers.insert(header::REPLAYED_AT, at.to_rfc3339_opts(SecondsFormat::Secs, true));
        }
        headers.insert(header::REPLAY_COUNT, i32::try_from(self.count).unwrap_or(i32::MAX));
    }
}

/// What a replay does to the attempt counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempts {
    /// Counts from 1 again; the error that set the message aside is cleared with it.
    Reset,
    /// Goes on from where it was; the error stays.
    Keep,
}

/// RFC 3339 with any fraction and offset, or epoch milliseconds as old Java wrote them.
fn read_time(value: &HeaderValue) -> Option<DateTime<Utc>> {
    if let Some(milliseconds) = value.lenient_i64() {
        return DateTime::from_timestamp_millis(milliseconds);
    }
    DateTime::parse_from_rfc3339(value.lenient_text()?.trim()).ok().map(|at| at.to_utc())
}

fn read_count(headers: &Headers) -> i64 {
    [header::REPLAY_COUNT, header::LEGACY_REPLAY_COUNT]
        .iter()
        .find_map(|name| headers.get(name)?.lenient_i64())
        .map_or(0, |count| count.max(0))
}
