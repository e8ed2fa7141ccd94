//! One transaction for a message's claim, the handler's work and its outgoing messages.
//!
//! # The problem
//!
//! A handler that changes a database is run again when the process dies before the message is
//! acknowledged, and its change is made twice. An idempotent consumer narrows that window, but
//! cannot close it: the work and the note that it was done are two writes. Here they are one. The
//! message is claimed in the transaction in which the handler works, and both commit together:
//! what the handler wrote is there **exactly once**, however often the message is delivered.
//!
//! Do not use it for effects outside the database. A mail that was sent before the commit failed
//! was sent; put such effects into outbox records, which commit with the rest.
//!
//! # Flow
//!
//! 1. A transaction begins, and the message id is written into the handled messages in it.
//! 2. If it stands there already, the message is acknowledged without running the handler.
//! 3. The handler works on [`Work::tx`] and adds outbox records to it.
//! 4. [`Work::commit`] makes the [`Receipt`] that the handler has to return: an acknowledgement
//!    before the commit does not compile.
//! 5. The message is acknowledged.
//!
//! | What fails | What happens |
//! |---|---|
//! | the handler (error, panic) | rolled back; retried or dead-lettered as by any consumer |
//! | the commit | retried; the next attempt finds out whether it had taken effect |
//! | the database, before the handler runs | the message is held until it answers; no attempt is spent |
//! | the database, while the handler works | its statement fails: an error of the handler as any other |
//! | the process, before the commit | rolled back; delivered again and handled |
//! | the process, after the commit | delivered again, recognised, acknowledged |
//! | another consumer has the same message | this one waits in the database for its outcome |
//!
//! # Batches
//!
//! A commit costs a flush to disk. [`TransactionalConsumer::batched`] lets messages share one:
//! each is worked on behind a savepoint of its own, so that one that fails is rolled back alone,
//! and all are acknowledged after the commit.

mod batch;
mod consumer;
mod savepoint;
mod single;
mod sql;
mod work;

pub use consumer::TransactionalConsumer;
pub use work::{Receipt, Work, WorkHandler, WorkResult};

use std::time::Duration;

pub use crate::store::{Database, OwnedTransaction};
use crate::{error::Result, idempotency::Claim};

/// Where a transactional consumer begins its transactions and notes handled messages.
///
/// The SQL idempotency stores are inboxes; implement it to note them in a table of your own.
pub trait Inbox: Clone + Send + Sync + 'static {
    /// The database, for instance `sqlx::Postgres`.
    type Database: Database;

    /// Begins a transaction.
    ///
    /// Where writers exclude each other, it must take the write lock at once, so that contention
    /// is waiting and not an error.
    fn begin(&self) -> impl Future<Output = Result<OwnedTransaction<Self::Database>>> + Send;

    /// Notes a message as handled in the transaction, unless it is.
    ///
    /// Of two transactions that note the same message, the second waits for the first to end.
    fn claim(
        &self,
        transaction: &mut OwnedTransaction<Self::Database>,
        consumer: &str,
        message_id: &str,
    ) -> impl Future<Output = Result<Claim>> + Send;

    /// Returns how long a handled message is remembered, if that is known. A consumer warns at its
    /// start where its retries can take longer. Default: not known.
    fn retention(&self) -> Option<Duration> {
        None
    }

    /// Deletes at most `limit` notes whose retention is over; returns how many.
    fn purge(&self, limit: u32) -> impl Future<Output = Result<u64>> + Send;
}
