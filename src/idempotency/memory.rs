//! Handled messages in memory.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Claim, DEFAULT_LEASE, DEFAULT_RETENTION, IdempotencyStore, check_key};
use crate::error::{Error, Result};

/// Remembers handled messages in this process, a bounded number of them.
///
/// For tests, and for a service with one instance whose effects die with it: after a restart nothing
/// is remembered, and other processes know nothing of it. Clones share the memory. When it is full,
/// the confirmed message that would be forgotten first is forgotten early; a running claim never is.
///
/// Time is tokio's clock, so that a test with paused time controls it.
#[derive(Debug, Clone)]
pub struct MemoryIdempotencyStore {
    lease: Duration,
    retention: Duration,
    capacity: usize,
    rows: Arc<Mutex<Rows>>,
}

type Key = (String, String);

#[derive(Debug, Default)]
struct Rows {
    by_key: HashMap<Key, Row>,
    /// Every row by the end of its lease or retention, confirmed ones apart.
    claimed: BTreeSet<(Instant, Key)>,
    confirmed: BTreeSet<(Instant, Key)>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    /// The owner of a claim; none once confirmed.
    claimed_by: Option<Uuid>,
    expires_at: Instant,
}

impl Default for MemoryIdempotencyStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryIdempotencyStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self {
            lease: DEFAULT_LEASE,
            retention: DEFAULT_RETENTION,
            capacity: 100_000,
            rows: Arc::default(),
        }
    }

    /// Sets how long a claim holds unless it is renewed. Default: 5 min.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long a handled message is remembered at most. Default: 24 h.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets how many messages are remembered at most. Default: 100,000; at least 1.
    ///
    /// It bounds the deduplication window as well: messages a second times the window in seconds.
    #[must_use]
    pub fn capacity(mut self, messages: usize) -> Self {
        self.capacity = messages.max(1);
        self
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        // Every change below is complete before anything can panic.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, key: Key) -> Result<Claim> {
        let now = Instant::now();
        let mut rows = self.rows();
        match rows.by_key.get(&key) {
            Some(row) if row.expires_at > now => {
                return Ok(match row.claimed_by {
                    None => Claim::AlreadyConfirmed,
                    Some(_) => Claim::InProgress,
                });
            }
            Some(_) => rows.remove(&key),
            None => {}
        }
        if rows.by_key.len() >= self.capacity && !rows.make_room(now) {
            let reason = format!("{} claims are running", self.capacity);
            return Err(Error::Store { action: "claim a message", source: reason.into() });
        }
        let token = Uuid::new_v4();
        rows.insert(key, Row { claimed_by: Some(token), expires_at: now + self.lease });
        Ok(Claim::Claimed(token))
    }

    /// Replaces the caller's claim, or removes it; returns whether it was the caller's.
    fn replace(&self, key: Key, token: Uuid, with: impl FnOnce(Instant) -> Option<Row>) -> bool {
        let mut rows = self.rows();
        let mine = rows.by_key.get(&key).is_some_and(|row| row.claimed_by == Some(token));
        if mine {
            rows.remove(&key);
            if let Some(row) = with(Instant::now()) {
                rows.insert(key, row);
            }
        }
        mine
    }

    fn forget_now(&self, key: &Key) -> bool {
        let now = Instant::now();
        let mut rows = self.rows();
        let row = rows.by_key.get(key);
        let known = row.is_some_and(|row| row.claimed_by.is_none() || row.expires_at <= now);
        if known {
            rows.remove(key);
        }
        known
    }

    fn purge_now(&self, limit: u32) -> u64 {
        let now = Instant::now();
        let mut rows = self.rows();
        let mut deleted = 0;
        while deleted < u64::from(limit) {
            let due = |set: &BTreeSet<(Instant, Key)>, slack: Duration| {
                set.first().filter(|(at, _)| *at + slack <= now).map(|(_, key)| key.clone())
            };
            let Some(key) =
                due(&rows.confirmed, Duration::ZERO).or_else(|| due(&rows.claimed, self.retention))
            else {
                break;
            };
            rows.remove(&key);
            deleted += 1;
        }
        deleted
    }
}

impl Rows {
    fn insert(&mut self, key: Key, row: Row) {
        self.ends(row).insert((row.expires_at, key.clone()));
        self.by_key.insert(key, row);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(row) = self.by_key.remove(key) {
            self.ends(row).remove(&(row.expires_at, key.clone()));
        }
    }

    fn ends(&mut self, row: Row) -> &mut BTreeSet<(Instant, Key)> {
        if row.claimed_by.is_some() { &mut self.claimed } else { &mut self.confirmed }
    }

    /// Forgets one row that is not a live claim.
    fn make_room(&mut self, now: Instant) -> bool {
        let expired = self.claimed.first().filter(|(at, _)| *at <= now);
        let Some((_, key)) = expired.or_else(|| self.confirmed.first()).cloned() else {
            return false;
        };
        self.remove(&key);
        true
    }
}

fn key(consumer: &str, message_id: &str) -> Result<Key> {
    check_key(consumer, message_id)?;
    Ok((consumer.to_owned(), message_id.to_owned()))
}

/// Runs at the first poll, as a future should.
fn lazily<'a, T: Send + 'a>(
    work: impl FnOnce() -> Result<T> + Send + 'a,
) -> BoxFuture<'a, Result<T>> {
    Box::pin(async move { work() })
}

impl IdempotencyStore for MemoryIdempotencyStore {
    fn claim_lease(&self) -> Duration {
        self.lease
    }

    fn retention(&self) -> Option<Duration> {
        Some(self.retention)
    }

    fn try_claim<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
    ) -> BoxFuture<'a, Result<Claim>> {
        lazily(|| self.claim(key(consumer, message_id)?))
    }

    fn confirm<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>> {
        let confirmed = |now| Some(Row { claimed_by: None, expires_at: now + self.retention });
        lazily(move || Ok(self.replace(key(consumer, message_id)?, token, confirmed)))
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>> {
        lazily(move || Ok(self.replace(key(consumer, message_id)?, token, |_| None)))
    }

    fn renew<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>> {
        let renewed =
            move |now| Some(Row { claimed_by: Some(token), expires_at: now + self.lease });
        lazily(move || Ok(self.replace(key(consumer, message_id)?, token, renewed)))
    }

    fn forget<'a>(&'a self, consumer: &'a str, message_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        lazily(|| Ok(self.forget_now(&key(consumer, message_id)?)))
    }

    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64>> {
        lazily(move || Ok(self.purge_now(limit)))
    }
}

/// For the vectors, which put rows in place and look at them.
#[cfg(test)]
impl MemoryIdempotencyStore {
    pub(super) fn put(
        &self,
        message_id: &str,
        claimed_by: Option<Uuid>,
        now_ms: i64,
        ends_ms: i64,
    ) {
        let live = Duration::from_millis(ends_ms.abs_diff(now_ms));
        let now = Instant::now();
        let expires_at = if ends_ms > now_ms { now + live } else { now - live };
        let key = ("c".to_owned(), message_id.to_owned());
        self.rows().insert(key, Row { claimed_by, expires_at });
    }

    /// Whether the row is confirmed, and how long it has still to go.
    pub(super) fn look(&self, message_id: &str) -> Option<(bool, Duration)> {
        let row = *self.rows().by_key.get(&("c".to_owned(), message_id.to_owned()))?;
        Some((row.claimed_by.is_none(), row.expires_at.saturating_duration_since(Instant::now())))
    }
}
