//! MySQL and MariaDB for the suite: tables with a prefix of their own.

use std::time::Duration;

use acemq::{
    Error,
    idempotency::{Claim, MySqlIdempotencyStore},
    outbox::{MySqlOutbox, OutboxRecord, Retired, ScheduledRecord},
};
use sqlx::{AssertSqlSafe, MySqlPool, Transaction, mysql::MySqlPoolOptions};

use crate::db::{Db, unique_prefix, url, with_tables};

#[derive(Clone)]
pub struct MySql {
    pub pool: MySqlPool,
    pub prefix: String,
}

impl MySql {
    pub async fn connect() -> MySqlPool {
        let url = url("ACEMQ_TEST_MYSQL", "mysql://root@127.0.0.1:3306/test");
        let options = MySqlPoolOptions::new().max_connections(12);
        options.connect(&url).await.expect("MariaDB is there")
    }
}

impl Db for MySql {
    const ONE_WRITER: bool = false;
    const RUNS: bool = false;

    type Tx = Transaction<'static, sqlx::MySql>;
    type Outbox = MySqlOutbox;
    type Idempotency = MySqlIdempotencyStore;

    async fn open() -> Self {
        let db = Self { pool: Self::connect().await, prefix: unique_prefix() };
        db.migrate().await.unwrap();
        db.migrate_idempotency().await.unwrap();
        db
    }

    async fn clean(self) {
        self.execute("DROP TABLE IF EXISTS {outbox}, {idempotency}, {schema}").await;
        self.pool.close().await;
    }

    fn outbox(&self) -> Self::Outbox {
        MySqlOutbox::new(self.pool.clone()).table_prefix(&self.prefix).unwrap()
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
        MySqlIdempotencyStore::new(self.pool.clone()).table_prefix(&self.prefix).unwrap()
    }

    async fn migrate_idempotency(&self) -> Result<(), Error> {
        self.idempotency().migrate().await
    }

    async fn check_idempotency(&self) -> Result<(), Error> {
        self.idempotency().check().await
    }

    async fn begin(&self) -> Self::Tx {
        self.pool.begin().await.unwrap()
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
        let now = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(3)) DIV 1000";
        format!("({now} + {seconds} * 1000)")
    }
}
