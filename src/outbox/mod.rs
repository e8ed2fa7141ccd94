//! Messages that go out if, and only if, the transaction that produced them commits.
//!
//! # The problem
//!
//! A service writes an order and publishes `order.placed`. These are two systems, and a crash
//! between them leaves them apart: an order that nobody hears of, or an event for an order that was
//! rolled back. The outbox makes the message part of the same commit: [`add`](OutboxStore::add)
//! writes a row in the caller's transaction, and an [`OutboxRelay`] publishes it afterwards.
//!
//! Do not use it for messages without a database write beside them: publishing them directly is
//! faster and confirmed as well.
//!
//! # What holds
//!
//! - A rollback publishes nothing. A commit publishes **at least once**: a relay that dies between
//!   the broker's confirm and its mark sends the message again, with the same message id, so that
//!   an idempotent consumer handles it once.
//! - The payload is published byte for byte as it was added, with its content type.
//! - A record that fails by itself (unroutable, refused, too large) spends an attempt, waits longer
//!   each time and retires after the last; its neighbours go on. An outage of the broker spends no
//!   attempts.
//! - Any number of relays may drain one table. Each record is leased to one of them at a time.
//!
//! # States of a record
//!
//! | State | Leaves it by |
//! | --- | --- |
//! | waiting | a claim, once its time has come and its ordering key is free |
//! | leased | publish (published), failure (waiting with a delay, or retired), outage or shutdown (waiting), the end of the lease (waiting) |
//! | published | the purge, 24 hours later by default |
//! | retired | [`OutboxStore::requeue`], after somebody has looked at it |
//!
//! # Order
//!
//! Records without an ordering key go out oldest first, many at a time: no order is promised.
//! Records with one go out one at a time per key, in the order of their sequence numbers, keys in
//! parallel, over any number of relays. A record that fails, or is not yet due, holds back the
//! later ones of its key and nothing else; so does a retired one, unless [`Retired::SkipRecord`].
//!
//! The sequence number is taken when the record is added, not when its transaction commits. If the
//! transactions of a key do not overlap in time, which any lock on the row that the key stands for
//! ensures, that is commit order. If two overlap, the one that added first and commits last goes
//! out when it becomes visible: after the other one, if that was published by then. It is never
//! lost and never changes place with a record of a transaction that began after its commit. On
//! SQLite writers do not overlap, so that it is always commit order.
//!
//! One relay at a time works on a key. It takes several records of a key at once if there are fewer
//! keys than places in its batch (not on MySQL), publishes each after the one before it was
//! confirmed, and stops at the first that fails. A claim looks at nothing behind the first
//! unfinished record of a key that is stuck, so that its backlog may have any length without
//! slowing the others down. What it costs grows with the number of keys that are stuck or in
//! flight.
//!
//! A relay that was frozen beyond its lease may repeat a record that another relay has sent since;
//! it carries the same message id.
//!
//! # Wake-ups
//!
//! `wake()` on the outbox after a commit makes a relay of the same process look at once. Over
//! processes PostgreSQL can carry the hint: with `PostgresOutbox::notify_every` where records are
//! added, `wake()` also sends a `NOTIFY`, and `PostgresOutbox::listen` where a relay runs hears it.
//! Both are off by default and nothing depends on them: the poll finds every record.
//!
//! # Databases
//!
//! `PostgresOutbox`, `MySqlOutbox` (MySQL 8 and MariaDB 10.6, feature `mysql`) and `SqliteOutbox` bring
//! their table; for one of your own, implement [`OutboxStore`]. With SQLite, writers wait for each other: set the `busy_timeout` of the pool to
//! what a writer may wait (sqlx's default is 5 s), prefer the write-ahead log, and begin
//! transactions that read before they write with `SqliteOutbox::begin`.

mod claimed;
mod record;
mod relay;
mod store;

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod rows;
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
#[cfg(all(test, any(feature = "postgres", feature = "sqlite", feature = "mysql")))]
mod tests;
#[cfg(feature = "postgres")]
mod wake_up;

pub use claimed::{ClaimedRecord, RetiredRecord, ScheduledRecord};
#[cfg(feature = "mysql")]
pub use mysql::MySqlOutbox;
#[cfg(feature = "postgres")]
pub use postgres::PostgresOutbox;
pub use record::OutboxRecord;
pub use relay::{OutboxRelay, OutboxTarget, RelayReport, RetryDelay, RunningRelay};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteOutbox;
pub use store::{ClaimedBatch, FailedPublish, Notifier, OutboxStore};
#[cfg(feature = "postgres")]
pub use wake_up::OutboxListener;

/// What a retired record means for the later records of its ordering key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retired {
    /// They wait until it is requeued and published, so that the order holds.
    #[default]
    BlockKey,
    /// They go on without it. If it is requeued later, it goes out after them.
    SkipRecord,
}
