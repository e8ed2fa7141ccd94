//! A database with a journal of its own for one test, which other processes may open as well, and
//! a table in which every effect of a step is noted.

use std::time::Duration;

#[cfg(feature = "mysql")]
use acemq::{MySqlOutbox, MySqlSagaJournal};
use acemq::{
    OutboxStore, PostgresOutbox, PostgresSagaJournal, SagaJournal, SqliteOutbox, SqliteSagaJournal,
    inbox::{Database, OwnedTransaction},
};
use sqlx::{
    AssertSqlSafe, PgPool, SqlitePool,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

/// What the tests need of a database.
pub trait World: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    type D: Database;
    type Journal: SagaJournal<Database = Self::D>;
    type Outbox: OutboxStore<Transaction = OwnedTransaction<Self::D>> + Clone;

    /// Opens the database of this name, which another process may have made.
    fn open(name: &str) -> impl Future<Output = Self> + Send;
    fn create(&self) -> impl Future<Output = ()> + Send;
    fn drop(self) -> impl Future<Output = ()> + Send;
    fn name(&self) -> &str;
    fn journal(&self) -> Self::Journal;
    fn outbox(&self) -> Self::Outbox;

    /// Notes an effect now, as an effect elsewhere would happen.
    fn effect(&self, what: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Notes an effect in a transaction.
    fn effect_in(
        tx: &mut OwnedTransaction<Self::D>,
        name: &str,
        what: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Runs a statement in which `{p}` stands for the prefix of the tables.
    fn execute(&self, sql: &str) -> impl Future<Output = ()> + Send;
    /// Reads one column as text, with `{p}` as above.
    fn texts(&self, sql: &str) -> impl Future<Output = Vec<String>> + Send;

    /// The effects in their order.
    fn effects(&self) -> impl Future<Output = Vec<String>> + Send {
        async { self.texts("SELECT what FROM {p}effects ORDER BY seq").await }
    }

    /// Makes every run due that has not ended: those of dead processes, and those that wait.
    fn make_due(&self) -> impl Future<Output = ()> + Send {
        async { self.execute("UPDATE {p}saga SET next_at = 0 WHERE next_at IS NOT NULL").await }
    }
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

#[cfg(feature = "mysql")]
#[derive(Clone)]
pub struct Maria {
    pool: sqlx::MySqlPool,
    name: String,
}

pub fn postgres_url() -> String {
    std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".to_owned())
}

impl Pg {
    /// The same tables through another address, such as a proxy's.
    pub async fn at(&self, url: &str) -> Self {
        let options =
            PgPoolOptions::new().max_connections(6).acquire_timeout(Duration::from_secs(5));
        let pool = options.connect(url).await.expect("PostgreSQL is up; see scripts/services.sh");
        Self { pool, name: self.name.clone() }
    }
}

impl Lite {
    /// The same file over a pool of this size.
    pub async fn with_connections(&self, connections: u32) -> Self {
        let options = SqliteConnectOptions::new().filename(file(&self.name));
        let pool = SqlitePoolOptions::new().max_connections(connections);
        Self { pool: pool.connect_with(options).await.unwrap(), name: self.name.clone() }
    }

    /// Takes a connection from the pool.
    pub async fn acquire(&self) -> Result<sqlx::pool::PoolConnection<sqlx::Sqlite>, sqlx::Error> {
        self.pool.acquire().await
    }
}

async fn postgres_pool(_: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(6);
    options.connect(&postgres_url()).await.expect("PostgreSQL is up; see scripts/services.sh")
}

#[cfg(feature = "mysql")]
async fn mysql_pool(_: &str) -> sqlx::MySqlPool {
    let url = std::env::var("ACEMQ_TEST_MYSQL")
        .unwrap_or_else(|_| "mysql://root@127.0.0.1:3306/test".to_owned());
    let options = sqlx::mysql::MySqlPoolOptions::new().max_connections(6);
    options.connect(&url).await.expect("MariaDB is up; see scripts/services.sh")
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

/// The methods that read the same for all, in their types.
macro_rules! world {
    ($world:ident, $name:literal, $db:ty, $journal:ident, $outbox:ident, $pool:ident, $serial:literal, $value:literal) => {
        impl World for $world {
            const NAME: &'static str = $name;
            type D = $db;
            type Journal = $journal;
            type Outbox = $outbox;

            async fn open(name: &str) -> Self {
                Self { pool: $pool(name).await, name: name.to_owned() }
            }

            async fn create(&self) {
                let table =
                    concat!("CREATE TABLE {p}effects (seq ", $serial, ", what varchar(255))");
                self.execute(table).await;
                self.journal().migrate().await.unwrap();
                self.outbox().migrate().await.unwrap();
            }

            async fn drop(self) {
                let tables =
                    ["effects", "outbox", "saga", "saga_journal", "saga_signals", "schema"];
                for table in tables {
                    self.execute(&format!("DROP TABLE IF EXISTS {{p}}{table}")).await;
                }
                self.pool.close().await;
                for suffix in ["", "-wal", "-shm"] {
                    let path = format!("{}{suffix}", file(&self.name).display());
                    let _ = std::fs::remove_file(path);
                }
            }

            fn name(&self) -> &str {
                &self.name
            }

            fn journal(&self) -> $journal {
                $journal::new(self.pool.clone()).table_prefix(&self.name).unwrap()
            }

            fn outbox(&self) -> $outbox {
                $outbox::new(self.pool.clone()).table_prefix(&self.name).unwrap()
            }

            async fn effect(&self, what: &str) -> Result<(), sqlx::Error> {
                let sql = format!("INSERT INTO {}effects (what) VALUES ({})", self.name, $value);
                sqlx::query(AssertSqlSafe(sql)).bind(what).execute(&self.pool).await.map(drop)
            }

            async fn effect_in(
                tx: &mut OwnedTransaction<$db>,
                name: &str,
                what: &str,
            ) -> Result<(), sqlx::Error> {
                let sql = format!("INSERT INTO {name}effects (what) VALUES ({})", $value);
                sqlx::query(AssertSqlSafe(sql)).bind(what).execute(&mut **tx).await.map(drop)
            }

            async fn execute(&self, sql: &str) {
                let sql = AssertSqlSafe(sql.replace("{p}", &self.name));
                sqlx::raw_sql(sql).execute(&self.pool).await.unwrap();
            }

            async fn texts(&self, sql: &str) -> Vec<String> {
                let sql = AssertSqlSafe(sql.replace("{p}", &self.name));
                sqlx::query_scalar(sql).fetch_all(&self.pool).await.unwrap()
            }
        }
    };
}

world!(
    Pg,
    "postgres",
    sqlx::Postgres,
    PostgresSagaJournal,
    PostgresOutbox,
    postgres_pool,
    "bigserial PRIMARY KEY",
    "$1"
);
world!(
    Lite,
    "sqlite",
    sqlx::Sqlite,
    SqliteSagaJournal,
    SqliteOutbox,
    sqlite_pool,
    "integer PRIMARY KEY AUTOINCREMENT",
    "?"
);
#[cfg(feature = "mysql")]
world!(
    Maria,
    "mysql",
    sqlx::MySql,
    MySqlSagaJournal,
    MySqlOutbox,
    mysql_pool,
    "bigint PRIMARY KEY AUTO_INCREMENT",
    "?"
);

/// A name that no other test's tables have.
pub fn unique() -> String {
    format!("t{}_", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

/// Runs a case with a database of its own, and cleans up if it passes.
pub async fn run<W: World, F: Future<Output = ()>>(case: impl FnOnce(W) -> F) {
    let world = W::open(&unique()).await;
    world.create().await;
    case(world.clone()).await;
    world.drop().await;
}

/// Makes each case a test on PostgreSQL, on SQLite and, with its feature, on MariaDB.
macro_rules! on_every_database {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::durable::world::run(super::$case::<crate::durable::world::Pg>).await;
            })*
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::durable::world::run(super::$case::<crate::durable::world::Maria>).await;
            })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::durable::world::run(super::$case::<crate::durable::world::Lite>).await;
            })*
        }
    };
}
pub(crate) use on_every_database;
