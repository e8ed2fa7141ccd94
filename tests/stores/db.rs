//! The databases that the suite runs on. A missing one fails its tests.

use std::{env, future::Future, panic::AssertUnwindSafe, time::Duration};

use acemq::{
    Error,
    idempotency::IdempotencyStore,
    outbox::{OutboxRecord, OutboxStore, Retired, ScheduledRecord},
};
use futures::FutureExt;
use uuid::Uuid;

/// One database with tables of its own for one test.
pub trait Db: Clone + Send + Sync + 'static {
    /// Whether write transactions wait for each other from their start.
    const ONE_WRITER: bool;

    /// Whether a claim takes several records of a key.
    const RUNS: bool = true;

    type Tx: Send + 'static;
    type Outbox: OutboxStore<Transaction = Self::Tx> + Clone;
    type Idempotency: IdempotencyStore + Clone;

    /// Opens the database and creates the tables.
    fn open() -> impl Future<Output = Self> + Send;
    /// Removes the tables.
    fn clean(self) -> impl Future<Output = ()> + Send;

    fn outbox(&self) -> Self::Outbox;
    fn outbox_with(&self, keep_published: bool, retired: Retired) -> Self::Outbox;
    fn migrate(&self) -> impl Future<Output = Result<(), Error>> + Send;
    fn migration_sql(&self) -> String;
    fn idempotency(&self) -> Self::Idempotency;
    fn migrate_idempotency(&self) -> impl Future<Output = Result<(), Error>> + Send;
    fn check_idempotency(&self) -> impl Future<Output = Result<(), Error>> + Send;

    fn begin(&self) -> impl Future<Output = Self::Tx> + Send;
    fn commit(tx: Self::Tx) -> impl Future<Output = ()> + Send;
    fn rollback(tx: Self::Tx) -> impl Future<Output = ()> + Send;
    fn add_all(
        &self,
        tx: &mut Self::Tx,
        records: Vec<OutboxRecord>,
    ) -> impl Future<Output = Result<u64, Error>> + Send;
    fn cancel(
        &self,
        tx: &mut Self::Tx,
        id: &str,
    ) -> impl Future<Output = Result<bool, Error>> + Send;
    fn scheduled(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<ScheduledRecord>, Error>> + Send;
    fn claim_in(
        &self,
        tx: &mut Self::Tx,
        consumer: &str,
        id: &str,
    ) -> impl Future<Output = Result<acemq::idempotency::Claim, Error>> + Send;

    /// Runs statements in which `{outbox}`, `{idempotency}` and `{schema}` stand for the tables.
    fn execute(&self, sql: &str) -> impl Future<Output = ()> + Send;
    /// Reads one integer.
    fn number(&self, sql: &str) -> impl Future<Output = i64> + Send;
    /// An SQL expression for the time in `column` less `by`.
    fn earlier(column: &str, by: Duration) -> String;
    /// An SQL expression for the time `seconds` from now.
    fn from_now(seconds: i64) -> String;
}

/// Runs a case on a database and cleans up, whatever comes of it.
pub async fn run<D: Db, F: Future<Output = ()>>(case: impl FnOnce(D) -> F) {
    let db = D::open().await;
    let outcome = AssertUnwindSafe(case(db.clone())).catch_unwind().await;
    db.clean().await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

pub fn url(variable: &str, default: &str) -> String {
    env::var(variable).unwrap_or_else(|_| default.to_owned())
}

pub fn unique_prefix() -> String {
    format!("t{}_", &Uuid::new_v4().simple().to_string()[..16])
}

pub fn with_tables(sql: &str, prefix: &str) -> String {
    ["outbox", "idempotency", "schema"].iter().fold(sql.to_owned(), |sql, table| {
        sql.replace(&format!("{{{table}}}"), &format!("{prefix}{table}"))
    })
}

/// Declares each case as a test on every database.
macro_rules! on_every_database {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::db::run(super::$case::<crate::postgres::Postgres>).await;
            })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::db::run(super::$case::<crate::sqlite::Sqlite>).await;
            })*
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::db::run(super::$case::<crate::mysql::MySql>).await;
            })*
        }
    };
}
pub(crate) use on_every_database;
