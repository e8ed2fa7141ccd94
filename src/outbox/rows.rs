//! Rows as the SQL stores read them, before they become records.

#[cfg(feature = "postgres")]
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;

#[cfg(any(feature = "sqlite", feature = "mysql"))]
use super::FailedPublish;
#[cfg(feature = "postgres")]
use super::wake_up::Announcer;
use super::{ClaimedBatch, ClaimedRecord, Notifier, OutboxRecord};
use crate::{error::with_causes, message::Envelope};

/// One row of a claim.
pub(super) struct StoredRow {
    pub(super) seq: i64,
    pub(super) id: String,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) content_type: String,
    pub(super) payload: Vec<u8>,
    pub(super) headers: String,
    pub(super) ordering_key: Option<String>,
    pub(super) unique_key: Option<String>,
    pub(super) attempts: i32,
    pub(super) age_ms: i64,
}

impl StoredRow {
    /// Makes a batch of the rows, oldest first: databases return changed rows in any order.
    pub(super) fn batch(token: Uuid, mut rows: Vec<Self>) -> ClaimedBatch {
        rows.sort_unstable_by_key(|row| row.seq);
        ClaimedBatch::new(token, rows.into_iter().map(Self::into_claimed).collect())
    }

    /// A row with headers that cannot be read becomes a damaged record, so that it fails alone.
    fn into_claimed(self) -> ClaimedRecord {
        let mut record =
            OutboxRecord::bytes(self.exchange, self.routing_key, self.content_type, self.payload)
                .envelope(Envelope::new().with_id(self.id));
        if let Some(key) = self.ordering_key {
            record = record.ordering_key(key);
        }
        if let Some(key) = self.unique_key {
            record = record.unique_key(key);
        }
        let attempts = u32::try_from(self.attempts).unwrap_or(0);
        let age = duration(self.age_ms);
        let read = record.read_stored_headers(&self.headers);
        let claimed = ClaimedRecord::new(self.seq, record, attempts, age);
        match read {
            Ok(()) => claimed,
            Err(error) => claimed.damaged(with_causes(&error)),
        }
    }
}

/// Milliseconds of the database as a duration; a clock that was set back gives zero.
pub(super) fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// One column of many records.
#[cfg(feature = "postgres")]
pub(super) fn column<'r, T>(
    records: &'r [OutboxRecord],
    get: impl Fn(&'r OutboxRecord) -> T,
) -> Vec<T> {
    records.iter().map(get).collect()
}

/// A batch size for SQL, from 1 to 10,000.
pub(super) fn batch_limit(batch: u32) -> i64 {
    i64::from(batch.clamp(1, 10_000))
}

/// Sequence numbers as the JSON text that SQLite and MySQL take a set in.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(super) fn json_set(seqs: &[i64]) -> String {
    serde_json::Value::from(seqs).to_string()
}

/// Failures as a JSON text: a list of sequence number, reason and delay in milliseconds.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(super) fn json_failures(failures: &[FailedPublish]) -> String {
    let rows = failures.iter().map(|failure| {
        serde_json::json!([
            failure.seq(),
            failure.reason(),
            failure.retry_after().map(crate::store::sql_millis)
        ])
    });
    serde_json::Value::Array(rows.collect()).to_string()
}

/// What the clones of a store share.
#[derive(Debug, Clone, Default)]
pub(super) struct Shared {
    pub(super) notifier: Notifier,
    #[cfg(feature = "postgres")]
    pub(super) turn: Turn,
    /// Tells other processes, where that was asked for.
    #[cfg(feature = "postgres")]
    pub(super) announcer: Option<Announcer>,
}

/// Where the next claim starts among the ordering keys, so that all keys get their turn when more
/// of them wait than fit into a batch. A claim that finds less than a batch from there on goes on
/// at the first key.
#[cfg(feature = "postgres")]
#[derive(Debug, Clone, Default)]
pub(super) struct Turn(Arc<Mutex<String>>);

#[cfg(feature = "postgres")]
impl Turn {
    pub(super) fn start(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what a claim found; returns whether to go on at the first key.
    pub(super) fn after(&self, start: &str, found: &[StoredRow], limit: i64) -> bool {
        let full = i64::try_from(found.len()).is_ok_and(|n| n >= limit);
        let next = match found.iter().filter_map(|row| row.ordering_key.as_ref()).max() {
            // The smallest text after the key: none contains NUL.
            Some(key) if full => format!("{key}\u{1}"),
            None if full => start.to_owned(),
            _ => String::new(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
        !full && !start.is_empty()
    }
}
