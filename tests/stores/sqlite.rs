//! SQLite for the suite: a file of its own.

use std::{path::PathBuf, time::Duration};

use acemq::{
    Error,
    idempotency::{Claim, SqliteIdempotencyStore},
    outbox::{OutboxRecord, Retired, ScheduledRecord, SqliteOutbox},
};
use sqlx::{
    AssertSqlSafe, SqlitePool, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use uuid::Uuid;

use crate::db::{Db, unique_prefix, with_tables};

#[derive(Clone)]
pub struct Sqlite {
    pub pool: SqlitePool,
    pub prefix: String,
    file: PathBuf,
}

impl Db for Sqlite {
    const ONE_WRITER: bool = true;

    type Tx = Transaction<'static, sqlx::Sqlite>;
    type Outbox = SqliteOutbox;
    type Idempotency = SqliteIdempotencyStore;

    async fn open() -> Self {
        let file = std::env::temp_dir().join(format!("acemq-{}.db", Uuid::new_v4()));
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new().max_connections(12).connect_with(options).await;
        let db = Self { pool: pool.unwrap(), prefix: unique_prefix(), file };
        db.migrate().await.unwrap();
        db.migrate_idempotency().await.unwrap();
        db
    }

    async fn clean(self) {
        self.pool.close().await;
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", self.file.display()));
        }
    }

    fn outbox(&self) -> Self::Outbox {
        SqliteOutbox::new(self.pool.clone()).table_prefix(&self.prefix).unwrap()
    }

    fn outbox_with(&self, keep_published: bool, retired: Retired) -> Self::Outbox {
        self.outbox().keep_published(keep_published).on_retired(retired)
    }

    async fn migrate(&self) -> Result<(), Error> {
        self.outbox().migrate().await
    }

    fn migration_sql(&self) -> String {
        self.outbox().migration_sql()
    }

    fn idempotency(&self) -> Self::Idempotency {
        SqliteIdempotencyStore::new(self.pool.clone()).table_prefix(&self.prefix).unwrap()
    }

    async fn migrate_idempotency(&self) -> Result<(), Error> {
        self.idempotency().migrate().await
    }

    async fn check_idempotency(&self) -> Result<(), Error> {
        self.idempotency().check().await
    }

    async fn begin(&self) -> Self::Tx {
        self.outbox().begin().await.unwrap()
    }

    async fn commit(tx: Self::Tx) {
        tx.commit().await.unwrap();
    }

    async fn rollback(tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }

    async fn add_all(&self, tx: &mut Self::Tx, records: Vec<OutboxRecord>) -> Result<u64, Error> {
        self.outbox().add_all(tx, records).await
    }

    async fn cancel(&self, tx: &mut Self::Tx, id: &str) -> Result<bool, Error> {
        self.outbox().cancel(tx, id).await
    }

    async fn scheduled(&self, limit: u32) -> Result<Vec<ScheduledRecord>, Error> {
        self.outbox().scheduled(limit).await
    }

    async fn claim_in(&self, tx: &mut Self::Tx, consumer: &str, id: &str) -> Result<Claim, Error> {
        self.idempotency().claim_in(tx, consumer, id).await
    }

    async fn execute(&self, sql: &str) {
        let sql = AssertSqlSafe(with_tables(sql, &self.prefix));
        sqlx::raw_sql(sql).execute(&self.pool).await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(with_tables(sql, &self.prefix));
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    fn earlier(column: &str, by: Duration) -> String {
        format!("{column} - {}", by.as_millis())
    }

    fn from_now(seconds: i64) -> String {
        format!("(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + {seconds} * 1000)")
    }
}
