//! A database with an outbox of its own for one test, which other processes may open as well.

use std::{future::Future, time::Duration};

use acemq::{OutboxRecord, OutboxStore, PostgresOutbox, SqliteOutbox};
use sqlx::{
    AssertSqlSafe, PgPool, SqlitePool, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

use crate::support::proxy::Proxy;

/// What the tests need of a database.
pub trait World: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    type Tx: Send + 'static;
    type Outbox: OutboxStore<Transaction = Self::Tx> + Clone;

    /// Opens the database of this name, which another process may have made.
    fn open(name: &str) -> impl Future<Output = Self> + Send;
    fn create(&self) -> impl Future<Output = ()> + Send;
    fn drop(self) -> impl Future<Output = ()> + Send;
    fn name(&self) -> &str;
    fn outbox(&self) -> Self::Outbox;

    fn begin(&self) -> impl Future<Output = Self::Tx> + Send;
    fn commit(tx: Self::Tx) -> impl Future<Output = ()> + Send;
    fn rollback(tx: Self::Tx) -> impl Future<Output = ()> + Send;
    fn add_in(
        &self,
        tx: &mut Self::Tx,
        records: Vec<OutboxRecord>,
    ) -> impl Future<Output = ()> + Send;

    /// Runs a statement in which `{outbox}` stands for the table.
    fn execute(&self, sql: &str) -> impl Future<Output = ()> + Send;
    /// Reads one integer.
    fn number(&self, sql: &str) -> impl Future<Output = i64> + Send;
    /// Reads one column as text.
    fn texts(&self, sql: &str) -> impl Future<Output = Vec<String>> + Send;

    /// Takes over every row of another world of this kind, as a dump and restore does: with its
    /// sequence numbers, and with a sequence that goes on after them.
    fn restore_from(&self, other: &Self) -> impl Future<Output = ()> + Send;

    /// Adds records and commits.
    fn add(&self, records: Vec<OutboxRecord>) -> impl Future<Output = ()> + Send {
        async {
            let mut tx = self.begin().await;
            self.add_in(&mut tx, records).await;
            Self::commit(tx).await;
        }
    }

    /// Makes everything that waits due now.
    fn make_due(&self) -> impl Future<Output = ()> + Send {
        self.execute("UPDATE {outbox} SET available_at = created_at")
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

impl Pg {
    /// The same tables, with functions looked up along this path.
    pub async fn with_search_path(&self, path: &str) -> Self {
        let options: PgConnectOptions = postgres_url().parse().unwrap();
        let pool = PgPoolOptions::new().max_connections(6);
        let pool = pool.connect_with(options.options([("search_path", path)])).await.unwrap();
        Self { pool, name: self.name.clone() }
    }

    /// The same tables over a pool of this size.
    pub async fn with_connections(&self, connections: u32) -> Self {
        let options = PgPoolOptions::new().max_connections(connections);
        let pool = options.connect(&postgres_url()).await.unwrap();
        Self { pool, name: self.name.clone() }
    }

    /// The same tables through a proxy that may cut the connections.
    pub async fn through_proxy(&self) -> (Self, Proxy) {
        let url = url::Url::parse(&postgres_url()).unwrap();
        let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
        let proxy = Proxy::to(&target).await;
        let through = through(&url, &proxy);
        (Self { pool: postgres_pool(&through).await, name: self.name.clone() }, proxy)
    }
}

/// A URL with the proxy's address.
pub fn through(url: &url::Url, proxy: &Proxy) -> String {
    let mut through = url.clone();
    through.set_host(Some("127.0.0.1")).unwrap();
    through.set_port(Some(proxy.port())).unwrap();
    through.to_string()
}

pub fn postgres_url() -> String {
    std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".to_owned())
}

async fn postgres_pool(url: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(6).acquire_timeout(Duration::from_secs(5));
    options.connect(url).await.expect("PostgreSQL is up; see scripts/services.sh")
}

async fn open_postgres(_: &str) -> PgPool {
    postgres_pool(&postgres_url()).await
}

async fn open_sqlite(name: &str) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(file(name))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap()
}

async fn begin_postgres(world: &Pg) -> Transaction<'static, sqlx::Postgres> {
    world.pool.begin().await.unwrap()
}

async fn begin_sqlite(world: &Lite) -> Transaction<'static, sqlx::Sqlite> {
    world.outbox().begin().await.unwrap()
}

fn file(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("acemq-test-{name}.db"))
}

fn restore_postgres(from: &Pg) -> String {
    let from = &from.name;
    format!(
        "INSERT INTO {{outbox}} OVERRIDING SYSTEM VALUE SELECT * FROM {from}outbox;
         SELECT setval(pg_get_serial_sequence('{{outbox}}', 'seq'), max(seq)) FROM {{outbox}}"
    )
}

fn restore_sqlite(from: &Lite) -> String {
    let (file, from) = (file(&from.name).display().to_string(), &from.name);
    format!(
        "ATTACH DATABASE '{file}' AS dump;
         INSERT INTO {{outbox}} SELECT * FROM dump.{from}outbox;
         DETACH DATABASE dump"
    )
}

/// The methods that read the same for both, in their two types.
macro_rules! world {
    ($world:ident, $name:literal, $database:ty, $outbox:ident, $open:ident, $begin:ident,
     $restore:ident) => {
        impl World for $world {
            const NAME: &'static str = $name;
            type Tx = Transaction<'static, $database>;
            type Outbox = $outbox;

            async fn open(name: &str) -> Self {
                Self { pool: $open(name).await, name: name.to_owned() }
            }

            async fn create(&self) {
                self.outbox().migrate().await.unwrap();
            }

            async fn drop(self) {
                for table in ["outbox", "schema"] {
                    let sql = format!("DROP TABLE IF EXISTS {}{table}", self.name);
                    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
                }
                self.pool.close().await;
                let _ = std::fs::remove_file(file(&self.name));
            }

            fn name(&self) -> &str {
                &self.name
            }

            fn outbox(&self) -> $outbox {
                $outbox::new(self.pool.clone()).table_prefix(&self.name).unwrap()
            }

            async fn begin(&self) -> Self::Tx {
                $begin(self).await
            }

            async fn commit(tx: Self::Tx) {
                tx.commit().await.unwrap();
            }

            async fn rollback(tx: Self::Tx) {
                tx.rollback().await.unwrap();
            }

            async fn add_in(&self, tx: &mut Self::Tx, records: Vec<OutboxRecord>) {
                self.outbox().add_all(tx, records).await.unwrap();
            }

            async fn execute(&self, sql: &str) {
                let sql = AssertSqlSafe(sql.replace("{outbox}", &format!("{}outbox", self.name)));
                sqlx::raw_sql(sql).execute(&self.pool).await.unwrap();
            }

            async fn restore_from(&self, other: &Self) {
                self.execute(&$restore(other)).await;
            }

            async fn number(&self, sql: &str) -> i64 {
                let sql = AssertSqlSafe(sql.replace("{outbox}", &format!("{}outbox", self.name)));
                sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
            }

            async fn texts(&self, sql: &str) -> Vec<String> {
                let sql = AssertSqlSafe(sql.replace("{outbox}", &format!("{}outbox", self.name)));
                sqlx::query_scalar(sql).fetch_all(&self.pool).await.unwrap()
            }
        }
    };
}

world!(
    Pg,
    "postgres",
    sqlx::Postgres,
    PostgresOutbox,
    open_postgres,
    begin_postgres,
    restore_postgres
);
world!(Lite, "sqlite", sqlx::Sqlite, SqliteOutbox, open_sqlite, begin_sqlite, restore_sqlite);

/// Runs a case with a database and a broker of its own, and cleans up if it passes.
pub async fn run<W: World, F: Future<Output = ()>>(
    broker: crate::support::Broker,
    case: impl FnOnce(std::sync::Arc<crate::support::Fixture>, W) -> F,
) {
    let name = format!("t{}_", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    let world = W::open(&name).await;
    world.create().await;
    crate::support::run(broker, |fx| case(fx, world.clone())).await;
    world.drop().await;
}

/// Makes each case a test on every database it is said to run on, with a real broker.
macro_rules! on_databases {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let broker = crate::support::Broker::RabbitMq;
                crate::world::run(broker, super::$case::<crate::world::Pg>).await;
            })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let broker = crate::support::Broker::RabbitMq;
                crate::world::run(broker, super::$case::<crate::world::Lite>).await;
            })*
        }
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let broker = crate::support::Broker::Memory;
                crate::world::run(broker, super::$case::<crate::world::Lite>).await;
            })*
        }
    };
}
pub(crate) use on_databases;
