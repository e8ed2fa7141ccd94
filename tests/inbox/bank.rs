//! A database with a table of effects, in which every effect is counted.

use std::time::Duration;

use acemq::{
    Error, IdempotencyStore, Inbox, OutboxRecord, OutboxStore, PostgresIdempotencyStore,
    PostgresOutbox, SqliteIdempotencyStore, SqliteOutbox,
    inbox::{Database, OwnedTransaction},
};
#[cfg(feature = "mysql")]
use acemq::{MySqlIdempotencyStore, MySqlOutbox};
use sqlx::{
    AssertSqlSafe, PgPool, SqlitePool,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

/// What the tests need of a database.
pub trait Bank: Clone + Send + Sync + 'static {
    type D: Database;
    type Store: Inbox<Database = Self::D> + IdempotencyStore;
    type Outbox: OutboxStore + Clone;

    /// Opens the database of this name, which another process may have made.
    fn open(name: &str) -> impl Future<Output = Self> + Send;
    fn create(&self) -> impl Future<Output = ()> + Send;
    fn drop(self) -> impl Future<Output = ()> + Send;
    fn store(&self) -> Self::Store;
    fn outbox(&self) -> Self::Outbox;

    /// Notes an effect in a transaction.
    fn effect(
        tx: &mut OwnedTransaction<Self::D>,
        name: &str,
        id: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Notes an effect at once.
    fn effect_now(&self, id: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn record(
        &self,
        tx: &mut OwnedTransaction<Self::D>,
        record: OutboxRecord,
    ) -> impl Future<Output = Result<bool, Error>> + Send;
    /// The number of effects, and of different messages that had one.
    fn effects(&self) -> impl Future<Output = (i64, i64)> + Send;
    fn name(&self) -> &str;
}

#[derive(Clone)]
pub struct Pg {
    pool: PgPool,
    name: String,
}

#[derive(Clone)]
pub struct Lite {
    pool: SqlitePool,
    name: String,
}

pub fn postgres_url() -> String {
    std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".to_owned())
}

#[cfg(feature = "mysql")]
#[derive(Clone)]
pub struct Maria {
    pool: sqlx::MySqlPool,
    name: String,
}

#[cfg(feature = "mysql")]
async fn mysql_pool(_: &str) -> sqlx::MySqlPool {
    let url = std::env::var("ACEMQ_TEST_MYSQL")
        .unwrap_or_else(|_| "mysql://root@127.0.0.1:3306/test".to_owned());
    let options = sqlx::mysql::MySqlPoolOptions::new().max_connections(8);
    options.connect(&url).await.expect("MariaDB is up; see scripts/services.sh")
}

impl Pg {
    /// Opens through another address, such as a proxy's.
    pub async fn open_at(url: &str, name: &str) -> Self {
        let options =
            PgPoolOptions::new().max_connections(8).acquire_timeout(Duration::from_secs(5));
        let pool = options.connect(url).await.expect("PostgreSQL is up; see scripts/services.sh");
        Self { pool, name: name.to_owned() }
    }
}

/// The methods that read the same for both, in their two types.
macro_rules! bank {
    ($bank:ident, $db:ty, $store:ident, $outbox:ident, $pool:ident, $value:literal) => {
        impl Bank for $bank {
            type D = $db;
            type Store = $store;
            type Outbox = $outbox;

            async fn open(name: &str) -> Self {
                Self { pool: $pool(name).await, name: name.to_owned() }
            }

            async fn create(&self) {
                let table = format!("CREATE TABLE {}effects (id varchar(255) NOT NULL)", self.name);
                sqlx::query(AssertSqlSafe(table)).execute(&self.pool).await.unwrap();
                self.store().migrate().await.unwrap();
                self.outbox().migrate().await.unwrap();
            }

            async fn drop(self) {
                for table in ["effects", "outbox", "idempotency", "schema"] {
                    let sql = format!("DROP TABLE IF EXISTS {}{table}", self.name);
                    sqlx::query(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
                }
                self.pool.close().await;
                let _ = std::fs::remove_file(file(&self.name));
            }

            fn store(&self) -> Self::Store {
                let store = $store::new(self.pool.clone()).table_prefix(&self.name).unwrap();
                // Claims of processes that died end while a test runs.
                store.lease(Duration::from_secs(2))
            }

            fn outbox(&self) -> Self::Outbox {
                $outbox::new(self.pool.clone()).table_prefix(&self.name).unwrap()
            }

            async fn effect(
                tx: &mut OwnedTransaction<$db>,
                name: &str,
                id: &str,
            ) -> Result<(), sqlx::Error> {
                let sql = format!("INSERT INTO {name}effects VALUES ({})", $value);
                sqlx::query(AssertSqlSafe(sql)).bind(id).execute(&mut **tx).await.map(drop)
            }

            async fn effect_now(&self, id: &str) -> Result<(), sqlx::Error> {
                let sql = format!("INSERT INTO {}effects VALUES ({})", self.name, $value);
                sqlx::query(AssertSqlSafe(sql)).bind(id).execute(&self.pool).await.map(drop)
            }

            async fn record(
                &self,
                tx: &mut OwnedTransaction<$db>,
                record: OutboxRecord,
            ) -> Result<bool, Error> {
                self.outbox().add(tx, record).await
            }

            async fn effects(&self) -> (i64, i64) {
                let sql = format!("SELECT count(*), count(DISTINCT id) FROM {}effects", self.name);
                sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap()
            }

            fn name(&self) -> &str {
                &self.name
            }
        }
    };
}

bank!(Pg, sqlx::Postgres, PostgresIdempotencyStore, PostgresOutbox, postgres_pool, "$1");
bank!(Lite, sqlx::Sqlite, SqliteIdempotencyStore, SqliteOutbox, sqlite_pool, "$1");
#[cfg(feature = "mysql")]
bank!(Maria, sqlx::MySql, MySqlIdempotencyStore, MySqlOutbox, mysql_pool, "?");

async fn postgres_pool(name: &str) -> PgPool {
    Pg::open_at(&postgres_url(), name).await.pool
}

async fn sqlite_pool(name: &str) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(file(name))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap()
}

fn file(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("acemq-test-{name}.db"))
}

/// A name that no other test's tables have.
pub fn unique() -> String {
    format!("t{}_", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

/// Makes each case a test on PostgreSQL, on SQLite and, with its feature, on MariaDB.
macro_rules! on_every_database {
    ($($(#[$meta:meta])* async fn $name:ident<$b:ident>($fx:ident, $bank:ident) $body:block)*) => {
        mod cases {
            use super::*;
            $(
                $(#[$meta])*
                pub(super) async fn $name<$b: crate::bank::Bank>(
                    $fx: std::sync::Arc<crate::support::Fixture>,
                    $bank: $b,
                ) $body
            )*
        }
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::bank::run(super::cases::$name::<crate::bank::Pg>).await;
                }
            )*
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::bank::run(super::cases::$name::<crate::bank::Maria>).await;
                }
            )*
        }
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::bank::run(super::cases::$name::<crate::bank::Lite>).await;
                }
            )*
        }
    };
}
pub(crate) use on_every_database;

/// Runs a case with a database of its own on the in-process broker: what is under test here is
/// the database's part.
pub async fn run<B: Bank, F: Future<Output = ()>>(
    case: impl FnOnce(std::sync::Arc<crate::support::Fixture>, B) -> F,
) {
    let bank = B::open(&unique()).await;
    bank.create().await;
    crate::support::run(crate::support::Broker::Memory, |fx| case(fx, bank.clone())).await;
    bank.drop().await;
}
