//! The outbox in MySQL and MariaDB.

use std::{sync::Arc, time::Duration};

use chrono::DateTime;
use sqlx::{MySql, MySqlConnection, MySqlPool, QueryBuilder, Row, Transaction, mysql::MySqlRow};
use uuid::Uuid;

use super::{
    ClaimedBatch, FailedPublish, Notifier, OutboxRecord, OutboxStore, Retired, RetiredRecord,
    ScheduledRecord,
    rows::{Shared, StoredRow, batch_limit, duration, json_failures, json_set},
    statements::{MYSQL, Settings, Statements},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, Prefix, failed,
        mysql::{self, NOW, execute, query},
        run_to_end, sql_millis,
    },
};

const MIGRATION: Migration =
    Migration { pattern: "outbox", versions: &[include_str!("../../migrations/mysql/outbox.sql")] };

const COLUMNS: &[Column] = &[
    ("seq", "bigint"),
    ("id", "varchar"),
    ("exchange", "varchar"),
    ("routing_key", "varchar"),
    ("payload", "longblob|mediumblob|blob"),
    ("content_type", "varchar"),
    ("headers", "longtext|mediumtext"),
    ("ordering_key", "varbinary"),
    ("unique_key", "varbinary"),
    ("created_at", "bigint"),
    ("available_at", "bigint"),
    ("attempts", "int|integer"),
    ("last_error", "text|mediumtext|longtext"),
    ("lease_token", "varchar|char"),
    ("lease_until", "bigint"),
    ("published_at", "bigint"),
    ("retired_at", "bigint"),
];

/// How many records one statement adds: ten values each, of the 65,535 that MySQL allows.
const ROWS_PER_INSERT: usize = 1000;

/// How often a claim that lost a deadlock is tried again.
const CLAIM_TRIES: u32 = 5;

/// An outbox in a MySQL or MariaDB table.
///
/// Cheap to clone; clones share the pool and the wake-up signal. Time is the database's: the
/// application's clock may be wrong.
///
/// # Examples
///
/// ```no_run
/// use acemq::outbox::{OutboxRecord, MySqlOutbox};
///
/// # async fn example(pool: sqlx::MySqlPool) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = MySqlOutbox::new(pool.clone());
/// outbox.migrate().await?;
///
/// let mut tx = pool.begin().await?;
/// // .. the work itself, on the same transaction ..
/// outbox.add(&mut tx, OutboxRecord::json("orders", "order.placed", &42)?).await?;
/// tx.commit().await?;
/// outbox.wake();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MySqlOutbox {
    pool: MySqlPool,
    settings: Settings,
    statements: Arc<Statements>,
    shared: Shared,
}

impl MySqlOutbox {
    /// Creates a store over the table `acemq_outbox`. Nothing is read or written yet.
    ///
    /// The pool is for the relay's own work; `add` uses only the caller's transaction.
    #[must_use]
    pub fn new(pool: MySqlPool) -> Self {
        Self::assemble(pool, Settings::new(NOW), Shared::default())
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
    /// - [`Error::Store`](crate::Error::Store) if the database fails. After a deadlock it has
    ///   rolled the transaction back.
    pub async fn add(
        &self,
        transaction: &mut Transaction<'_, MySql>,
        record: OutboxRecord,
    ) -> Result<bool> {
        self.add_all(transaction, vec![record]).await.map(|stored| stored == 1)
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
        transaction: &mut Transaction<'_, MySql>,
        records: Vec<OutboxRecord>,
    ) -> Result<u64> {
        let headers: Vec<String> =
            records.iter().map(OutboxRecord::stored_headers).collect::<Result<_>>()?;
        let rows: Vec<_> = records.iter().zip(headers).collect();
        let mut stored = 0;
        for rows in rows.chunks(ROWS_PER_INSERT) {
            let mut insert = QueryBuilder::new(self.insert_into(rows));
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
            let done = insert.build().execute(&mut **transaction).await;
            stored += done.map_err(failed("add outbox records"))?.rows_affected();
        }
        Ok(stored)
    }
}

/// Details.
impl MySqlOutbox {
    /// `IGNORE` also softens other errors, so only records with a unique key get it; everything
    /// that it could soften for them has been checked.
    fn insert_into(&self, rows: &[(&OutboxRecord, String)]) -> String {
        let unique = rows.iter().any(|(record, _)| record.get_unique_key().is_some());
        let into = if unique { "INSERT IGNORE INTO" } else { "INSERT INTO" };
        self.statements.insert_many.replace("INSERT INTO", into)
    }

    /// Selects and leases in one transaction; runs to its end, since a dropped one would leave its
    /// connection in an unknown state.
    async fn claim(&self, batch: u32, lease: Duration) -> Result<ClaimedBatch> {
        let store = self.clone();
        run_to_end("claim outbox records", async move {
            for _ in 0..CLAIM_TRIES {
                match store.try_claim(batch, lease).await {
                    Err(error) if mysql::is_contention(&error) => {}
                    claimed => return claimed.map_err(failed("claim outbox records")),
                }
            }
            // Others are at it; the next poll may find more.
            Ok(ClaimedBatch::new(Uuid::new_v4(), Vec::new()))
        })
        .await
    }

    async fn try_claim(&self, batch: u32, lease: Duration) -> sqlx::Result<ClaimedBatch> {
        let token = Uuid::new_v4();
        let mut connection = self.pool.acquire().await?;
        let mut tx = mysql::begin_read_committed(&mut connection).await?;
        let limit = batch_limit(batch);
        let free = query(&self.statements.claim).bind(limit).fetch_all(&mut *tx).await?;
        let keys = query(&self.statements.claim_keys).bind(limit).fetch_all(&mut *tx).await?;
        let mut rows = free.iter().map(read_candidate).collect::<sqlx::Result<Vec<_>>>()?;
        if !keys.is_empty() {
            let seqs = keys.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<i64>>>()?;
            let keyed = query(&self.statements.claim_keyed).bind(json_set(&seqs));
            for row in keyed.fetch_all(&mut *tx).await? {
                rows.push(read_candidate(&row)?);
            }
        }
        // The oldest of both; the others are free again with the commit.
        rows.sort_unstable_by_key(|(available_at, row)| (*available_at, row.seq));
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let rows: Vec<StoredRow> = rows.into_iter().map(|(_, row)| row).collect();
        if !rows.is_empty() {
            let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
            query(&self.statements.claimed)
                .bind(json_set(&seqs))
                .bind(token.to_string())
                .bind(sql_millis(lease))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(StoredRow::batch(token, rows))
    }
}

/// Purging.
impl MySqlOutbox {
    /// Of all that purge at a moment, the one that gets the named lock does.
    async fn purge_if_elected(&self, older_than: Duration, limit: u32) -> sqlx::Result<u64> {
        let mut connection = self.pool.acquire().await?;
        let lock = format!("acemq purge {}", self.settings.table());
        if !mysql::try_lock(&mut connection, &lock).await? {
            return Ok(0);
        }
        let purged = self.purge_some(&mut connection, older_than, limit).await;
        mysql::unlock(&mut connection, &lock).await?;
        purged
    }

    async fn purge_some(
        &self,
        connection: &mut MySqlConnection,
        older_than: Duration,
        limit: u32,
    ) -> sqlx::Result<u64> {
        let rows = query(&self.statements.purge)
            .bind(sql_millis(older_than))
            .bind(i64::from(limit))
            .fetch_all(&mut *connection)
            .await?;
        let seqs = rows.iter().map(|row| row.try_get("seq")).collect::<sqlx::Result<Vec<i64>>>()?;
        if seqs.is_empty() {
            return Ok(0);
        }
        let purged = query(&self.statements.purged).bind(json_set(&seqs));
        Ok(purged.execute(&mut *connection).await?.rows_affected())
    }
}

shared_methods!(MySqlOutbox, MySqlPool, MySql, MYSQL, mysql, |_| {});

impl OutboxStore for MySqlOutbox {
    type Transaction = Transaction<'static, MySql>;

    async fn add(&self, transaction: &mut Self::Transaction, record: OutboxRecord) -> Result<bool> {
        Self::add(self, transaction, record).await
    }

    async fn claim_batch(&self, batch: u32, lease: Duration) -> Result<ClaimedBatch> {
        self.claim(batch, lease).await
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
            .bind(sql_millis(lease))
            .bind(token.to_string());
        execute(&self.pool, change, "renew the lease of outbox records").await
    }

    async fn release(&self, token: Uuid, seqs: &[i64], delay: Duration) -> Result<u64> {
        let change = query(&self.statements.release)
            .bind(json_set(seqs))
            .bind(sql_millis(delay))
            .bind(sql_millis(delay))
            .bind(token.to_string());
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
        let store = self.clone();
        run_to_end("purge outbox records", async move {
            store.purge_if_elected(older_than, limit).await.map_err(failed("purge outbox records"))
        })
        .await
    }

    async fn check(&self) -> Result<()> {
        Self::check(self).await
    }

    fn notifier(&self) -> Option<Notifier> {
        Some(self.shared.notifier.clone())
    }
}

/// A row that a claim may take, with the time by which claims are ordered.
fn read_candidate(row: &MySqlRow) -> sqlx::Result<(i64, StoredRow)> {
    Ok((row.try_get("available_at")?, read_claimed(row)?))
}

fn read_claimed(row: &MySqlRow) -> sqlx::Result<StoredRow> {
    Ok(StoredRow {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        content_type: row.try_get("content_type")?,
        payload: row.try_get("payload")?,
        headers: row.try_get("headers")?,
        ordering_key: binary_text(row, "ordering_key")?,
        unique_key: binary_text(row, "unique_key")?,
        attempts: row.try_get("attempts")?,
        age_ms: row.try_get("age_ms")?,
    })
}

/// Text that stands in a binary column, where every byte counts in a comparison.
fn binary_text(row: &MySqlRow, column: &str) -> sqlx::Result<Option<String>> {
    let bytes: Option<Vec<u8>> = row.try_get(column)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn read_scheduled(row: &MySqlRow) -> sqlx::Result<ScheduledRecord> {
    Ok(ScheduledRecord {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        ordering_key: binary_text(row, "ordering_key")?,
        created_at: DateTime::from_timestamp_millis(row.try_get("created_at")?).unwrap_or_default(),
        available_at: DateTime::from_timestamp_millis(row.try_get("available_at")?)
            .unwrap_or_default(),
    })
}

fn read_retired(row: &MySqlRow) -> sqlx::Result<RetiredRecord> {
    let attempts: i32 = row.try_get("attempts")?;
    Ok(RetiredRecord {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        ordering_key: binary_text(row, "ordering_key")?,
        attempts: u32::try_from(attempts).unwrap_or(0),
        last_error: row.try_get::<Option<_>, _>("last_error")?.unwrap_or_default(),
        created_at: DateTime::from_timestamp_millis(row.try_get("created_at")?).unwrap_or_default(),
        retired_at: DateTime::from_timestamp_millis(row.try_get("retired_at")?).unwrap_or_default(),
    })
}
