//! A relay over a table that a team has already: the outbox's contract in its own columns.
//!
//! `cargo run --example outbox_custom_table`; it needs no server.

use std::time::Duration;

use acemq::{
    AceMq, BoxError, Error, OutboxRecord, OutboxRelay, OutboxStore, Queue, Result, Topology,
    outbox::{ClaimedBatch, ClaimedRecord, FailedPublish, RetiredRecord},
};
use sqlx::{Row, Sqlite, SqlitePool, Transaction, sqlite::SqlitePoolOptions};
use uuid::Uuid;

const QUEUE: &str = "acemq.example.events";

/// Times are milliseconds since the epoch. `state` is `new`, `sent` or `dead`.
const TABLE: &str = "CREATE TABLE events (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, body BLOB NOT NULL, meta TEXT NOT NULL,
    message_id TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'new', tries INTEGER NOT NULL DEFAULT 0,
    born INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000), due INTEGER NOT NULL DEFAULT 0,
    owner TEXT, owned_until INTEGER NOT NULL DEFAULT 0, error TEXT)";
const NOW: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";

#[derive(Clone)]
struct Events(SqlitePool);

fn failed(source: sqlx::Error) -> Error {
    Error::Store { action: "use the table of events", source: source.into() }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Events {
    /// Changes rows, each only if the claim that `token` stands for still owns it.
    async fn change(&self, set: &str, token: Uuid, ids: &[i64]) -> Result<u64> {
        let set = set.replace("NOW", NOW);
        let sql = format!(
            "UPDATE events SET {set} WHERE owner = ? AND id IN (SELECT value FROM json_each(?))"
        );
        let change = sqlx::query(sqlx::AssertSqlSafe(sql));
        let change = change.bind(token.to_string()).bind(serde_json::json!(ids).to_string());
        Ok(change.execute(&self.0).await.map_err(failed)?.rows_affected())
    }

    async fn number(&self, sql: &'static str) -> Result<Option<i64>> {
        sqlx::query_scalar(sql).fetch_one(&self.0).await.map_err(failed)
    }
}

impl OutboxStore for Events {
    type Transaction = Transaction<'static, Sqlite>;

    async fn add(&self, tx: &mut Self::Transaction, record: OutboxRecord) -> Result<bool> {
        // Refuses what could never be published, while the caller can still do something about it.
        let meta = record.stored_headers()?;
        sqlx::query("INSERT INTO events (topic, body, meta, message_id) VALUES (?, ?, ?, ?)")
            .bind(record.routing_key())
            .bind(record.payload().as_ref())
            .bind(meta)
            .bind(record.id())
            .execute(&mut **tx)
            .await
            .map_err(failed)?;
        Ok(true)
    }

    async fn claim_batch(&self, batch: u32, lease: Duration) -> Result<ClaimedBatch> {
        let token = Uuid::new_v4();
        let sql = format!(
            "UPDATE events SET owner = ?, owned_until = {NOW} + ? WHERE id IN (
                 SELECT id FROM events WHERE state = 'new' AND due <= {NOW} AND owned_until < {NOW}
                 ORDER BY id LIMIT ?)
             RETURNING id, topic, body, meta, message_id, tries, {NOW} - born AS age"
        );
        let claim = sqlx::query(sqlx::AssertSqlSafe(sql));
        let claim = claim.bind(token.to_string()).bind(millis(lease)).bind(batch);
        let mut records = Vec::new();
        for row in claim.fetch_all(&self.0).await.map_err(failed)? {
            let (topic, body): (String, Vec<u8>) = (row.get("topic"), row.get("body"));
            let record = OutboxRecord::bytes("", topic, "application/json", body)
                .envelope(acemq::Envelope::new().with_id(row.get::<String, _>("message_id")))
                .with_stored_headers(row.get("meta"))?;
            let age = Duration::from_millis(row.get::<i64, _>("age").unsigned_abs());
            records.push(ClaimedRecord::new(row.get("id"), record, row.get("tries"), age));
        }
        records.sort_by_key(ClaimedRecord::seq);
        Ok(ClaimedBatch::new(token, records))
    }

    async fn mark_published(&self, token: Uuid, ids: &[i64]) -> Result<u64> {
        self.change("state = 'sent', owner = NULL", token, ids).await
    }

    async fn mark_failed(&self, token: Uuid, failures: &[FailedPublish]) -> Result<u64> {
        let mut changed = 0;
        for failure in failures {
            let error = failure.reason().replace('\'', "''");
            let then = match failure.retry_after() {
                Some(delay) => format!("due = NOW + {}", millis(delay)),
                None => "state = 'dead'".to_owned(),
            };
            let set = format!(
                "tries = tries + 1, error = '{error}', owner = NULL, owned_until = 0, {then}"
            );
            changed += self.change(&set, token, &[failure.seq()]).await?;
        }
        Ok(changed)
    }

    async fn renew(&self, token: Uuid, ids: &[i64], lease: Duration) -> Result<u64> {
        self.change(&format!("owned_until = NOW + {}", millis(lease)), token, ids).await
    }

    async fn release(&self, token: Uuid, ids: &[i64], delay: Duration) -> Result<u64> {
        let due = format!("owner = NULL, owned_until = 0, due = NOW + {}", millis(delay));
        self.change(&due, token, ids).await
    }

    async fn pending_count(&self) -> Result<u64> {
        let count = self.number("SELECT count(*) FROM events WHERE state <> 'sent'").await?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }

    async fn oldest_pending_age(&self) -> Result<Option<Duration>> {
        let oldest = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) - min(born)
                      FROM events WHERE state = 'new'";
        Ok(self.number(oldest).await?.map(|age| Duration::from_millis(age.unsigned_abs())))
    }

    async fn retired(&self, _limit: u32) -> Result<Vec<RetiredRecord>> {
        Ok(Vec::new()) // this team looks at its dead events in its own tools
    }

    async fn requeue(&self, ids: &[i64]) -> Result<u64> {
        let sql = "UPDATE events SET state = 'new', tries = 0, due = 0
                   WHERE state = 'dead' AND id IN (SELECT value FROM json_each(?))";
        let change = sqlx::query(sql).bind(serde_json::json!(ids).to_string());
        Ok(change.execute(&self.0).await.map_err(failed)?.rows_affected())
    }

    async fn purge(&self, _older_than: Duration, _limit: u32) -> Result<u64> {
        Ok(0) // this team keeps its events
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    sqlx::raw_sql(TABLE).execute(&pool).await?;
    let events = Events(pool.clone());

    let mq = AceMq::connect("memory://").await?;
    mq.declare(&Topology::new().queue(Queue::new(QUEUE))).await?;
    for (body, commits) in [("kept", true), ("undone", false)] {
        let mut tx = pool.begin().await?;
        events.add(&mut tx, OutboxRecord::json("", QUEUE, body)?).await?;
        if commits { tx.commit().await? } else { tx.rollback().await? }
    }
    let mut tx = pool.begin().await?;
    events.add(&mut tx, OutboxRecord::json("", "acemq.example.nowhere", "lost")?).await?;
    tx.commit().await?;

    let report = OutboxRelay::new(&mq, events.clone()).max_attempts(1).drain(0).await?;
    println!("published {}, retired {}", report.published(), report.retired());
    let dead: Vec<(String, String)> =
        sqlx::query_as("SELECT topic, error FROM events WHERE state = 'dead'")
            .fetch_all(&pool)
            .await?;
    println!("dead: {dead:?}");
    assert_eq!((report.published(), report.retired(), dead.len()), (1, 1, 1));
    assert_eq!(mq.queue_length(QUEUE).await?, Some(1));
    mq.close().await;
    Ok(())
}
