//! The outbox in PostgreSQL.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use sqlx::{PgPool, Postgres, Row, Transaction, postgres::PgRow};
use uuid::Uuid;

use super::{
    ClaimedBatch, FailedPublish, Notifier, OutboxListener, OutboxRecord, OutboxStore, Retired,
    RetiredRecord, ScheduledRecord,
    rows::{Shared, StoredRow, batch_limit, column, duration},
    statements::{POSTGRES, Settings, Statements},
    wake_up::Announcer,
};
use crate::{
    error::Result,
    store::{
        Column, Migration, Prefix, failed,
        postgres::{self, execute, query},
        sql_millis,
    },
};

const MIGRATION: Migration = Migration {
    pattern: "outbox",
    versions: &[include_str!("../../migrations/postgres/outbox.sql")],
};

const COLUMNS: &[Column] = &[
    ("seq", "bigint"),
    ("id", "text|character varying"),
    ("exchange", "text|character varying"),
    ("routing_key", "text|character varying"),
    ("payload", "bytea"),
    ("content_type", "text|character varying"),
    ("headers", "text"),
    ("ordering_key", "text|character varying"),
    ("unique_key", "text|character varying"),
    ("created_at", "timestamp with time zone"),
    ("available_at", "timestamp with time zone"),
    ("attempts", "integer"),
    ("last_error", "text|character varying"),
    ("lease_token", "uuid"),
    ("lease_until", "timestamp with time zone"),
    ("published_at", "timestamp with time zone"),
    ("retired_at", "timestamp with time zone"),
];

/// An outbox in a PostgreSQL table.
///
/// Cheap to clone; clones share the pool and the wake-up signal. Time is the database's: the
/// application's clock may be wrong.
///
/// # Examples
///
/// ```no_run
/// use acemq::outbox::{OutboxRecord, PostgresOutbox};
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = PostgresOutbox::new(pool.clone());
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
pub struct PostgresOutbox {
    pool: PgPool,
    settings: Settings,
    statements: Arc<Statements>,
    shared: Shared,
}

impl PostgresOutbox {
    /// Creates a store over the table `acemq_outbox`. Nothing is read or written yet.
    ///
    /// The pool is for the relay's own work; `add` uses only the caller's transaction.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::assemble(pool, Settings::new("now()"), Shared::default())
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
    /// - [`Error::Store`](crate::Error::Store) if the database fails; PostgreSQL then refuses
    ///   everything but a rollback.
    pub async fn add(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
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
            .bind(record.get_available_at())
            .execute(&mut **transaction)
            .await
            .map_err(failed("add an outbox record"))?;
        Ok(done.rows_affected() == 1)
    }

    /// Writes many records in the caller's transaction with one statement; their order is kept.
    ///
    /// Returns how many were stored: all but those whose unique key was there. As with
    /// [`add`](Self::add), and if one record is refused, none is stored.
    ///
    /// # Errors
    ///
    /// Those of [`add`](Self::add).
    pub async fn add_all(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        records: Vec<OutboxRecord>,
    ) -> Result<u64> {
        if records.is_empty() {
            return Ok(0);
        }
        let headers: Vec<String> =
            records.iter().map(OutboxRecord::stored_headers).collect::<Result<_>>()?;
        let payloads: Vec<&[u8]> = records.iter().map(|r| r.payload().as_ref()).collect();
        let times: Vec<Option<DateTime<Utc>>> =
            records.iter().map(OutboxRecord::get_available_at).collect();
        let done = query(&self.statements.insert_many)
            .bind(column(&records, OutboxRecord::id))
            .bind(column(&records, OutboxRecord::exchange))
            .bind(column(&records, OutboxRecord::routing_key))
            .bind(column(&records, OutboxRecord::content_type))
            .bind(payloads)
            .bind(headers)
            .bind(column(&records, OutboxRecord::get_ordering_key))
            .bind(column(&records, OutboxRecord::get_unique_key))
            .bind(times)
            .execute(&mut **transaction)
            .await
            .map_err(failed("add outbox records"))?;
        Ok(done.rows_affected())
    }
}

/// Waking the relays of other processes.
impl PostgresOutbox {
    /// Makes [`wake`](Self::wake) tell other processes as well, at most once in `interval`.
    /// Default: off.
    ///
    /// The first wake-up is sent at once, by a `NOTIFY` on a connection of the pool, and those that
    /// come within the interval together at its end. It is never part of your transaction: a
    /// `NOTIFY` inside one makes commits wait for each other. It works behind a proxy that pools
    /// transactions; [`listen`](Self::listen) does not.
    #[must_use]
    pub fn notify_every(mut self, interval: Duration) -> Self {
        self.shared.announcer = Some(Announcer::new(interval));
        self
    }

    fn tell_others(&self) {
        let Some(announcer) = &self.shared.announcer else { return };
        let (pool, channel) = (self.pool.clone(), self.settings.table());
        announcer.announce(move || {
            let (pool, channel) = (pool.clone(), channel.clone());
            async move { postgres::notify(&pool, &channel).await }
        });
    }

    /// Hears the wake-ups of other processes and passes them to a relay of this one, until the
    /// listener is dropped.
    ///
    /// It keeps one connection beside the pool, to the same server, which must be a session of its
    /// own: behind a proxy that pools transactions nothing is heard, and relays only poll. A lost
    /// connection is made again with growing delays.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn listen(&self) -> OutboxListener {
        let (pool, channel) = (self.pool.clone(), self.settings.table());
        let notifier = self.shared.notifier.clone();
        OutboxListener::start(move |listening| {
            let (pool, channel, notifier) = (pool.clone(), channel.clone(), notifier.clone());
            async move {
                let heard = || {
                    listening.note();
                    notifier.wake();
                };
                postgres::listen(&pool, &channel, heard).await
            }
        })
    }
}

/// Details.
impl PostgresOutbox {
    /// Leases the oldest rows without an ordering key and the first ones of the keys from `start`.
    async fn claim(
        &self,
        limit: i64,
        token: Uuid,
        lease: Duration,
        start: &str,
    ) -> Result<Vec<StoredRow>> {
        let rows = query(&self.statements.claim)
            .bind(limit)
            .bind(token)
            .bind(sql_millis(lease))
            .bind(start)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("claim outbox records"))?;
        let rows = rows.iter().map(read_claimed).collect::<sqlx::Result<_>>();
        rows.map_err(failed("read outbox records"))
    }
}

shared_methods!(PostgresOutbox, PgPool, Postgres, POSTGRES, postgres, Self::tell_others);

impl OutboxStore for PostgresOutbox {
    type Transaction = Transaction<'static, Postgres>;

    async fn add(&self, transaction: &mut Self::Transaction, record: OutboxRecord) -> Result<bool> {
        Self::add(self, transaction, record).await
    }

    async fn claim_batch(&self, batch: u32, lease: Duration) -> Result<ClaimedBatch> {
        let (token, limit) = (Uuid::new_v4(), batch_limit(batch));
        let start = self.shared.turn.start();
        let mut rows = self.claim(limit, token, lease, &start).await?;
        let left = limit - i64::try_from(rows.len()).unwrap_or(limit);
        if self.shared.turn.after(&start, &rows, limit) {
            match self.claim(left, token, lease, "").await {
                Ok(more) => {
                    self.shared.turn.after("", &more, left);
                    rows.extend(more);
                }
                // The next claim will say so as well; these rows are leased already.
                Err(error) if rows.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(StoredRow::batch(token, rows))
    }

    async fn mark_published(&self, token: Uuid, seqs: &[i64]) -> Result<u64> {
        let change = query(&self.statements.mark_published).bind(seqs).bind(token);
        execute(&self.pool, change, "mark outbox records as published").await
    }

    async fn mark_failed(&self, token: Uuid, failures: &[FailedPublish]) -> Result<u64> {
        let seqs: Vec<i64> = failures.iter().map(FailedPublish::seq).collect();
        let reasons: Vec<&str> = failures.iter().map(FailedPublish::reason).collect();
        let delays: Vec<Option<i64>> =
            failures.iter().map(|f| f.retry_after().map(sql_millis)).collect();
        let change =
            query(&self.statements.mark_failed).bind(seqs).bind(reasons).bind(delays).bind(token);
        execute(&self.pool, change, "mark outbox records as failed").await
    }

    async fn renew(&self, token: Uuid, seqs: &[i64], lease: Duration) -> Result<u64> {
        let change = query(&self.statements.renew).bind(seqs).bind(token).bind(sql_millis(lease));
        execute(&self.pool, change, "renew the lease of outbox records").await
    }

    async fn release(&self, token: Uuid, seqs: &[i64], delay: Duration) -> Result<u64> {
        let change = query(&self.statements.release).bind(seqs).bind(token).bind(sql_millis(delay));
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
        let change = query(&self.statements.requeue).bind(seqs);
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

fn read_claimed(row: &PgRow) -> sqlx::Result<StoredRow> {
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

fn read_scheduled(row: &PgRow) -> sqlx::Result<ScheduledRecord> {
    Ok(ScheduledRecord {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        ordering_key: row.try_get("ordering_key")?,
        created_at: row.try_get("created_at")?,
        available_at: row.try_get("available_at")?,
    })
}

fn read_retired(row: &PgRow) -> sqlx::Result<RetiredRecord> {
    let attempts: i32 = row.try_get("attempts")?;
    Ok(RetiredRecord {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        ordering_key: row.try_get("ordering_key")?,
        attempts: u32::try_from(attempts).unwrap_or(0),
        last_error: row.try_get::<Option<_>, _>("last_error")?.unwrap_or_default(),
        created_at: row.try_get("created_at")?,
        retired_at: row.try_get("retired_at")?,
    })
}
