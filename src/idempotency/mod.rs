//! Remembering which messages were handled, so that a duplicate has no effect.
//!
//! # The problem
//!
//! RabbitMQ delivers at least once, and so do an outbox, a retry and a replay: any message may come
//! twice, and two copies may come at the same moment. "Look whether it was handled, then handle it"
//! lets both copies through. Here the look is a claim: one statement that the primary key of a
//! table arbitrates, so that exactly one copy gets it.
//!
//! # States of a message
//!
//! The key is the consumer's name and the message id, so that two consumers of one message do not
//! disturb each other.
//!
//! | `try_claim` finds | Answer | What the consumer does |
//! | --- | --- | --- |
//! | nothing, or an expired row | [`Claim::Claimed`] | handle, then `confirm` and ack; on failure `release` and retry |
//! | a confirmed row | [`Claim::AlreadyConfirmed`] | ack without handling |
//! | another live claim | [`Claim::InProgress`] | try later; never ack, since the other holder may die |
//!
//! A claim has a lease (5 minutes by default): if its owner dies, the message can be handled once the
//! lease is over. An owner that is merely slow renews it. A confirmed row is remembered for the
//! retention (24 hours by default), which is **the deduplication window**: make it longer than
//! the longest time a copy can lie in a retry, delay or dead-letter queue.
//!
//! # What does not hold
//!
//! A crash between the work and `confirm` leaves the work done and the message unconfirmed: it is
//! handled again. Where that must not happen, claim in the transaction of the work itself with
//! `claim_in` of a database store: the claim and the work then commit together.

mod memory;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod statements;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
#[macro_use]
mod shared;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use uuid::Uuid;

pub use memory::MemoryIdempotencyStore;
#[cfg(feature = "mysql")]
pub use mysql::MySqlIdempotencyStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresIdempotencyStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteIdempotencyStore;

use crate::{error::Result, store::check_short_text};

/// How long a claim holds unless it is renewed.
const DEFAULT_LEASE: Duration = Duration::from_mins(5);

/// How long a handled message is remembered.
const DEFAULT_RETENTION: Duration = Duration::from_hours(24);

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The message is the caller's to handle. The token is the proof for confirming, releasing
    /// and renewing.
    Claimed(Uuid),
    /// The message was handled: acknowledge it.
    AlreadyConfirmed,
    /// Somebody is handling it and may still fail: try later.
    InProgress,
}

/// Remembers which messages a consumer has handled.
///
/// Every method is one short piece of work, safe to call from many processes at once. `consumer`
/// and `message_id` are at most 255 bytes without NUL; a longer one fails with
/// [`Error::InvalidOption`](crate::Error::InvalidOption). A database's failure is
/// [`Error::Store`](crate::Error::Store): nothing is known then, so a consumer must neither handle
/// nor acknowledge the message, only try later.
///
/// The futures may be dropped at any point; the work has then happened or it has not. A claim whose
/// answer was never seen ends with its lease.
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Returns how long a claim holds unless it is renewed. A consumer renews it three times as
    /// often while its handler runs. Default: 5 min.
    fn claim_lease(&self) -> Duration {
        DEFAULT_LEASE
    }

    /// Returns how long a handled message is remembered, if that is known. A consumer warns at its
    /// start where its retries can take longer. Default: not known.
    fn retention(&self) -> Option<Duration> {
        None
    }

    /// Claims a message for a consumer, unless it is handled or being handled.
    fn try_claim<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
    ) -> BoxFuture<'a, Result<Claim>>;

    /// Records that the message was handled; it is remembered for the retention from now.
    ///
    /// Returns `false`, and changes nothing, if the claim is no longer the caller's: its lease ran
    /// out and somebody else may have handled the message too.
    fn confirm<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>>;

    /// Gives a claim back, so that the message can be handled again at once.
    ///
    /// Returns `false`, and changes nothing, if the claim is not the caller's or is confirmed.
    fn release<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>>;

    /// Lets the lease of a claim end one lease from now.
    ///
    /// Returns `false`, and changes nothing, if the claim is no longer the caller's.
    fn renew<'a>(
        &'a self,
        consumer: &'a str,
        message_id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>>;

    /// Forgets a message, so that a replay of it is handled again; returns whether it was known.
    ///
    /// A live claim stays, and the answer is `false`: somebody is handling the message right now.
    fn forget<'a>(&'a self, consumer: &'a str, message_id: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Deletes at most `limit` rows whose retention is over; returns how many.
    ///
    /// Never deletes a live claim, and a claim whose lease ran out only a retention later, so that
    /// a slow owner that nobody has replaced can still confirm.
    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64>>;
}

/// A shared store is a store.
impl<S: IdempotencyStore + ?Sized> IdempotencyStore for Arc<S> {
    fn claim_lease(&self) -> Duration {
        S::claim_lease(self)
    }

    fn retention(&self) -> Option<Duration> {
        S::retention(self)
    }

    fn try_claim<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<Claim>> {
        S::try_claim(self, consumer, id)
    }

    fn confirm<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>> {
        S::confirm(self, consumer, id, token)
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>> {
        S::release(self, consumer, id, token)
    }

    fn renew<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        token: Uuid,
    ) -> BoxFuture<'a, Result<bool>> {
        S::renew(self, consumer, id, token)
    }

    fn forget<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        S::forget(self, consumer, id)
    }

    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64>> {
        S::purge(self, limit)
    }
}

fn check_key(consumer: &str, message_id: &str) -> Result<()> {
    check_short_text("consumer", consumer)?;
    check_short_text("message id", message_id)
}
