//! Records as a store hands them out: claimed by a relay, or retired and waiting for somebody.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::OutboxRecord;

/// A record that a relay holds a lease on.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedRecord {
    seq: i64,
    attempts: u32,
    age: Duration,
    record: OutboxRecord,
    damage: Option<String>,
}

impl ClaimedRecord {
    /// Creates a claimed record, for stores: its sequence number, the attempts it has spent, and
    /// its age by the database's clock.
    #[must_use]
    pub fn new(seq: i64, record: OutboxRecord, attempts: u32, age: Duration) -> Self {
        Self { seq, attempts, age, record, damage: None }
    }

    /// Marks the record as unreadable: a relay fails it with this reason instead of publishing it.
    #[must_use]
    pub fn damaged(mut self, reason: impl Into<String>) -> Self {
        self.damage = Some(reason.into());
        self
    }

    /// Returns the sequence number: what a store finds the row by.
    #[must_use]
    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// Returns how many attempts were spent before this one.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns how old the record was when it was claimed, by the database's clock.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Returns the message.
    #[must_use = "the record is what is to be published"]
    pub fn record(&self) -> &OutboxRecord {
        &self.record
    }

    /// Returns why the stored row cannot be read, if it cannot.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}

/// A record whose time has not come: see [`OutboxRecord::available_at`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduledRecord {
    /// The sequence number.
    pub seq: i64,
    /// The message id, by which it can be cancelled.
    pub id: String,
    /// The exchange it will be published to.
    pub exchange: String,
    /// The routing key it will be published with.
    pub routing_key: String,
    /// The ordering key, whose later records wait for it.
    pub ordering_key: Option<String>,
    /// When it was added.
    pub created_at: DateTime<Utc>,
    /// From when on a relay may take it.
    pub available_at: DateTime<Utc>,
}

/// A record whose attempts are spent: it waits for somebody to look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetiredRecord {
    /// The sequence number, which [`OutboxStore::requeue`](super::OutboxStore::requeue) takes.
    pub seq: i64,
    /// The message id.
    pub id: String,
    /// The exchange it could not be published to.
    pub exchange: String,
    /// The routing key it could not be published with.
    pub routing_key: String,
    /// The ordering key, whose later records wait.
    pub ordering_key: Option<String>,
    /// How many attempts were spent.
    pub attempts: u32,
    /// Why the last attempt failed; at most 1,000 characters.
    pub last_error: String,
    /// When it was added.
    pub created_at: DateTime<Utc>,
    /// When it was retired.
    pub retired_at: DateTime<Utc>,
}
