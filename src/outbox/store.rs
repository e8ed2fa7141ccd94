//! The contract between a relay and the table that it drains.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use uuid::Uuid;

use super::{ClaimedRecord, OutboxRecord, RetiredRecord};
use crate::error::Result;

/// Holds messages that must be published if, and only if, the work that produced them committed.
///
/// Implement it to keep a table of your own. Every method but `add` is one short, self-contained
/// piece of database work: none may leave a transaction open, and each must be safe to call from
/// many processes at once. What a relay relies on:
///
/// - **State, not position.** A claim selects rows by their state. A row that becomes visible late,
///   with a smaller sequence number than rows already published, is found like any other.
/// - **Leases by the database's clock.** Nothing compares a stored time with the application's clock.
/// - **Fencing.** Each claim writes a fresh random token into its rows. Marks, renewals and releases
///   change only rows that still carry the token they are given, and say how many that were.
///
/// The futures may be dropped at any point; the work has then happened or it has not.
///
/// Every method fails with [`Error::Store`](crate::Error::Store) if the database does; a relay
/// waits and tries again.
pub trait OutboxStore: Send + Sync + 'static {
    /// The caller's open transaction, which `add` writes into.
    type Transaction: Send;

    /// Writes a record in the caller's transaction, so that it exists if the transaction commits
    /// and never did if it rolls back. Must not use another connection.
    ///
    /// Returns `false`, and stores nothing, if a record with the same unique key is there.
    /// Fails with [`Error::InvalidOption`](crate::Error::InvalidOption) for a record that could
    /// never be published ([`OutboxRecord::stored_headers`] checks that).
    fn add(
        &self,
        transaction: &mut Self::Transaction,
        record: OutboxRecord,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Leases at most `batch` records to the caller, in the order in which they were added.
    ///
    /// The oldest go first, by the time from which they may go out; of more ordering keys than fit
    /// into a batch, each gets its turn.
    ///
    /// Claimable is a record that is neither published nor retired, whose time has come, whose
    /// lease is empty or ended strictly before now, and which is the first unfinished one of its
    /// ordering key, if it has a key. Two claims at the same moment never return the same record.
    ///
    /// A claim may also take the next records of a key that it takes the first one of, up to the
    /// first that is retired, leased or not yet due. A relay publishes them one after another, and
    /// releases those behind one that it could not publish.
    fn claim_batch(
        &self,
        batch: u32,
        lease: Duration,
    ) -> impl Future<Output = Result<ClaimedBatch>> + Send;

    /// Records that the broker has taken these records; returns how many still had the token.
    fn mark_published(&self, token: Uuid, seqs: &[i64])
    -> impl Future<Output = Result<u64>> + Send;

    /// Spends an attempt of each of these records and gives up the lease; returns how many still
    /// had the token.
    ///
    /// A record with a `retry_after` becomes claimable again after that time. One without is
    /// retired: kept, listed by [`retired`](Self::retired), and no longer claimed.
    fn mark_failed(
        &self,
        token: Uuid,
        failures: &[FailedPublish],
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Lets the lease of these records end `lease` from now; returns how many still had the token.
    fn renew(
        &self,
        token: Uuid,
        seqs: &[i64],
        lease: Duration,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Gives up the lease without spending an attempt; the records are claimable again after
    /// `delay`. Returns how many still had the token.
    fn release(
        &self,
        token: Uuid,
        seqs: &[i64],
        delay: Duration,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Counts the records that are not published, leased and retired ones included.
    fn pending_count(&self) -> impl Future<Output = Result<u64>> + Send;

    /// Returns the age of the oldest record that a relay should have published: neither published
    /// nor retired, and due or already tried.
    fn oldest_pending_age(&self) -> impl Future<Output = Result<Option<Duration>>> + Send;

    /// Lists retired records, oldest first, at most `limit`.
    fn retired(&self, limit: u32) -> impl Future<Output = Result<Vec<RetiredRecord>>> + Send;

    /// Makes retired records claimable again with no attempts spent; returns how many.
    fn requeue(&self, seqs: &[i64]) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes at most `limit` records that were published longer ago than `older_than`; returns
    /// how many. Never touches a record that is not published.
    ///
    /// Every running relay calls it now and then. Of calls at the same moment one should do the
    /// work and the others return 0 at once, rather than wait for it.
    fn purge(&self, older_than: Duration, limit: u32) -> impl Future<Output = Result<u64>> + Send;

    /// Compares the table with what the store needs. Default: nothing to compare.
    ///
    /// A relay calls it when it starts and does not claim before it succeeds.
    fn check(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns what wakes the relays of this process. Default: none, relays only poll.
    ///
    /// All clones of a store share one. A source of wake-ups from other processes, such as a
    /// database's own notifications, would call [`Notifier::wake`] on it as well.
    fn notifier(&self) -> Option<Notifier> {
        None
    }
}

/// The records of one claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedBatch {
    token: Uuid,
    records: Vec<ClaimedRecord>,
}

impl ClaimedBatch {
    /// Creates a batch, for stores: the claim's token and its records, oldest first.
    #[must_use]
    pub fn new(token: Uuid, records: Vec<ClaimedRecord>) -> Self {
        Self { token, records }
    }

    /// Returns the fencing token that marks, renewals and releases of these records need.
    #[must_use]
    pub fn token(&self) -> Uuid {
        self.token
    }

    /// Returns the records, oldest first.
    #[must_use]
    pub fn records(&self) -> &[ClaimedRecord] {
        &self.records
    }

    /// Returns whether nothing was claimable.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn into_records(self) -> Vec<ClaimedRecord> {
        self.records
    }
}

/// One record's failed publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedPublish {
    seq: i64,
    reason: String,
    retry_after: Option<Duration>,
}

impl FailedPublish {
    /// Creates a failure after which the record is tried again in `delay`.
    #[must_use]
    pub fn retry(seq: i64, reason: &str, delay: Duration) -> Self {
        Self { seq, reason: storable(reason), retry_after: Some(delay) }
    }

    /// Creates a failure that retires the record.
    #[must_use]
    pub fn retire(seq: i64, reason: &str) -> Self {
        Self { seq, reason: storable(reason), retry_after: None }
    }

    /// Returns the sequence number of the record.
    #[must_use]
    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// Returns the reason: at most 1,000 characters, none of them NUL.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns when to try again; none retires the record.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

/// Cuts a reason to what every database's text column takes.
fn storable(reason: &str) -> String {
    reason.chars().take(1000).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}

/// Wakes the relays of this process, so that a committed record need not wait for the next poll.
///
/// A wake-up is a hint: it may come too often or not at all, and nothing is lost either way.
#[derive(Debug, Clone, Default)]
pub struct Notifier(Arc<Notify>);

impl Notifier {
    /// Creates a notifier; clones share it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes one relay, at once or as soon as it waits. Call it after the commit.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_to_a_thousand_characters_without_nul() {
        let failure = FailedPublish::retire(1, &"ä\0".repeat(900));
        assert_eq!(failure.reason().chars().count(), 1000);
        assert!(!failure.reason().contains('\0'));
    }
}
