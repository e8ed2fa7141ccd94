//! The outbox in SQLite.

use std::{sync::Arc, time::Duration};

use chrono::DateTime;
use sqlx::{QueryBuilder, Row, Sqlite, SqlitePool, Transaction, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    ClaimedBatch, FailedPublish, Notifier, OutboxRecord, OutboxStore, Retired, RetiredRecord,
    ScheduledRecord,
    rows::{Shared, StoredRow, batch_limit, duration, json_failures, json_set},
    statements::{SQLITE, Settings, Statements},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, Prefix, failed, sql_millis,
        sqlite::{self, NOW, execute, query},
    },
};

const MIGRATION: Migration = Migration {
    pattern: "outbox",
    versions: &[include_str!("../../migrations/sqlite/outbox.sql")],
};

const COLUMNS: &[Column] = &[
    ("seq", "integer"),
    ("id", "text"),
    ("exchange", "text"),
    ("routing_key", "text"),
    ("payload", "blob"),
    ("content_type", "text"),
    ("headers", "text"),
    ("ordering_key", "text"),
    ("unique_key", "text"),
    ("created_at", "integer"),
    ("available_at", "integer"),
    ("attempts", "integer"),
    ("last_error", "text"),
    ("lease_token", "text"),
    ("lease_until", "integer"),
    ("published_at", "integer"),
    ("retired_at", "integer"),
];

/// How many records one statement adds: ten values each, of the 32,766 that SQLite allows.
const ROWS_PER_INSERT: usize = 1000;

/// An outbox in an SQLite table.
///
/// Cheap to clone; clones share the pool and the wake-up signal. Time is the database's clock,
/// which in SQLite is this machine's.
///
/// # Examples
///
/// ```no_run
/// use acemq::outbox::{OutboxRecord, SqliteOutbox};
///
/// # async fn example(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = SqliteOutbox::new(pool.clone());
/// outbox.migrate().await?;
///
/// let mut tx = outbox.begin().await?;
/// // .. the work itself, on the same transaction ..
/// outbox.add(&mut tx, OutboxRecord::json("orders", "order.placed", &42)?).await?;
/// tx.commit().await?;
/// outbox.wake();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SqliteOutbox {
    pool: SqlitePool,
    settings: Settings,
    statements: Arc<Statements>,
    shared: Shared,
}

impl SqliteOutbox {
    /// Creates a store over the table `acemq_outbox`. Nothing is read or written yet.
    ///
    /// The pool is for the relay's own work; `add` uses only the caller's transaction.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self::assemble(pool, Settings::new(NOW), Shared::default())
    }

    /// Begins a transaction that holds the write lock from the start.
    ///
    /// A transaction of `pool.begin()` that reads before it writes is refused with "database is
    /// locked" if another writer came between, whatever the busy timeout; this one waits instead.
    ///
    /// # Errors
    ///
    /// [`Error::Store`](crate::Error::Store) if the lock is not free within the busy timeout.
    pub async fn begin(&self) -> Result<Transaction<'static, Sqlite>> {
        sqlite::begin(&self.pool).await
    }

    /// Writes a record in the caller's transaction.
    ///
    /// It is published after the transaction has committed, at least once, and never if it rolls
    /// back. Returns `false`, and stores nothing, if a record with the same
    /// [unique key](OutboxRecord::unique_key) is there.
    ///
    /// One statement: a future that is dropped has stored the record or not, and the transaction
    /// decides as before. Call [`wake`](Self::wake) after the commit for the shortest delay.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`](crate::Error::InvalidOption) for a record that could never be
    ///   published; the transaction is still usable.
    /// - [`Error::Store`](crate::Error::Store) if the database fails or the write lock is not free
    ///   within the busy timeout.
    pub async fn add(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        record: OutboxRecord,
    ) -> Result<bool> {
        let headers = record.stored_headers()?;
        let done = query(&self.statements.insert)
            .bind(record.id())
            .bind(record.exchange())
            .bind(record.routing_key())
            .bind(record.content_type())
            .bind(record.payload().as_ref())
            .bind(headers)
            .bind(record.get_ordering_key())
            .bind(record.get_unique_key())
            .bind(record.get_available_at().map(|at| at.timestamp_millis()))
            .execute(&mut **transaction)
            .await
            .map_err(failed("add an outbox record"))?;
        Ok(done.rows_affected() == 1)
    }

    /// Writes many records in the caller's transaction, a thousand with each statement; their
    /// order is kept.
    ///
    /// Returns how many were stored: all but those whose unique key was there. As with
    /// [`add`](Self::add), and if one record is refused, none is stored.
    ///
    /// # Errors
    ///
    /// Those of [`add`](Self::add).
    pub async fn add_all(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        records: Vec<OutboxRecord>,
    ) -> Result<u64> {
        let headers: Vec<String> =
            records.iter().map(OutboxRecord::stored_headers).collect::<Result<_>>()?;
        let rows: Vec<_> = records.iter().zip(headers).collect();
        let mut stored = 0;
        for rows in rows.chunks(ROWS_PER_INSERT) {
            let mut insert = QueryBuilder::new(&*self.statements.insert_many);
            insert.push_values(rows, |mut row, (record, headers)| {
                let available_at = record.get_available_at().map(|at| at.timestamp_millis());
                row.push_bind(record.id())
                    .push_bind(record.exchange())
                    .push_bind(record.routing_key())
                    .push_bind(record.content_type())
                    .push_bind(record.payload().as_ref())
                    .push_bind(headers.as_str())
                    .push_bind(record.get_ordering_key())
                    .push_bind(record.get_unique_key())
                    .push("coalesce(")
                    .push_bind_unseparated(available_at)
                    .push_unseparated(format_args!(", {now})", now = self.settings.now))
                    .push(self.settings.now);
            });
            insert.push(" ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING");
            let done = insert.build().execute(&mut **transaction).await;
            stored += done.map_err(failed("add outbox records"))?.rows_affected();
        }
        Ok(stored)
    }
}

shared_methods!(SqliteOutbox, SqlitePool, Sqlite, SQLITE, sqlite, |_| {});

impl OutboxStore for SqliteOutbox {
    type Transaction = Transaction<'static, Sqlite>;

    async fn add(&self, transaction: &mut Self::Transaction, record: OutboxRecord) -> Result<bool> {
        Self::add(self, transaction, record).await
    }

    async fn claim_batch(&self, batch: u32, lease: Duration) -> Result<ClaimedBatch> {
        let token = Uuid::new_v4();
        let rows = query(&self.statements.claim)
            .bind(batch_limit(batch))
            .bind(token.to_string())
            .bind(sql_millis(lease))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("claim outbox records"))?;
        let rows = rows.iter().map(read_claimed).collect::<sqlx::Result<Vec<_>>>();
        Ok(StoredRow::batch(token, rows.map_err(failed("read outbox records"))?))
    }

    async fn mark_published(&self, token: Uuid, seqs: &[i64]) -> Result<u64> {
        let change =
            query(&self.statements.mark_published).bind(json_set(seqs)).bind(token.to_string());
        execute(&self.pool, change, "mark outbox records as published").await
    }

    async fn mark_failed(&self, token: Uuid, failures: &[FailedPublish]) -> Result<u64> {
        let change = query(&self.statements.mark_failed)
            .bind(json_failures(failures))
            .bind(token.to_string());
        execute(&self.pool, change, "mark outbox records as failed").await
    }

    async fn renew(&self, token: Uuid, seqs: &[i64], lease: Duration) -> Result<u64> {
        let change = query(&self.statements.renew)
            .bind(json_set(seqs))
            .bind(token.to_string())
            .bind(sql_millis(lease));
        execute(&self.pool, change, "renew the lease of outbox records").await
    }

    async fn release(&self, token: Uuid, seqs: &[i64], delay: Duration) -> Result<u64> {
        let change = query(&self.statements.release)
            .bind(json_set(seqs))
            .bind(token.to_string())
            .bind(sql_millis(delay));
        execute(&self.pool, change, "release outbox records").await
    }

    async fn pending_count(&self) -> Result<u64> {
        let row = query(&self.statements.pending_count).fetch_one(&self.pool).await;
        let count: sqlx::Result<i64> = row.and_then(|row| row.try_get(0));
        let count = count.map_err(failed("count outbox records"))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn oldest_pending_age(&self) -> Result<Option<Duration>> {
        let row = query(&self.statements.oldest_pending).fetch_one(&self.pool).await;
        let age: sqlx::Result<Option<i64>> = row.and_then(|row| row.try_get(0));
        let age = age.map_err(failed("read the age of outbox records"))?;
        Ok(age.map(duration))
    }

    async fn retired(&self, limit: u32) -> Result<Vec<RetiredRecord>> {
        let rows = query(&self.statements.retired)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list retired outbox records"))?;
        rows.iter()
            .map(read_retired)
            .collect::<sqlx::Result<_>>()
            .map_err(failed("read retired outbox records"))
    }

    async fn requeue(&self, seqs: &[i64]) -> Result<u64> {
        let change = query(&self.statements.requeue).bind(json_set(seqs));
        execute(&self.pool, change, "requeue outbox records").await
    }

    async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64> {
        let change =
            query(&self.statements.purge).bind(sql_millis(older_than)).bind(i64::from(limit));
        execute(&self.pool, change, "purge outbox records").await
    }

    async fn check(&self) -> Result<()> {
        Self::check(self).await
    }

    fn notifier(&self) -> Option<Notifier> {
        Some(self.shared.notifier.clone())
    }
}

fn read_claimed(row: &SqliteRow) -> sqlx::Result<StoredRow> {
    Ok(StoredRow {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        content_type: row.try_get("content_type")?,
        payload: row.try_get("payload")?,
        headers: row.try_get("headers")?,
        ordering_key: row.try_get("ordering_key")?,
        unique_key: row.try_get("unique_key")?,
        attempts: row.try_get("attempts")?,
        age_ms: row.try_get("age_ms")?,
    })
}

fn read_scheduled(row: &SqliteRow) -> sqlx::Result<ScheduledRecord> {
    Ok(ScheduledRecord {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        ordering_key: row.try_get("ordering_key")?,
        created_at: DateTime::from_timestamp_millis(row.try_get("created_at")?).unwrap_or_default(),
        available_at: DateTime::from_timestamp_millis(row.try_get("available_at")?)
            .unwrap_or_default(),
    })
}

fn read_retired(row: &SqliteRow) -> sqlx::Result<RetiredRecord> {
    let attempts: i32 = row.try_get("attempts")?;
    Ok(RetiredRecord {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        ordering_key: row.try_get("ordering_key")?,
        attempts: u32::try_from(attempts).unwrap_or(0),
        last_error: row.try_get::<Option<_>, _>("last_error")?.unwrap_or_default(),
        created_at: DateTime::from_timestamp_millis(row.try_get("created_at")?).unwrap_or_default(),
        retired_at: DateTime::from_timestamp_millis(row.try_get("retired_at")?).unwrap_or_default(),
    })
}
