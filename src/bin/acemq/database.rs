//! An outbox of whichever database the URL names.

use std::time::Duration;

use acemq::{
    BoxError, MySqlOutbox, OutboxStore, PostgresOutbox, SqliteOutbox,
    outbox::{RetiredRecord, ScheduledRecord},
};
use sqlx::{
    MySqlPool, PgPool, SqlitePool, mysql::MySqlPoolOptions, postgres::PgPoolOptions,
    sqlite::SqlitePoolOptions,
};

use crate::{Common, broker::CONNECT_WITHIN, needed};

/// An outbox, and the connections to its database.
pub enum Outbox {
    Postgres(PostgresOutbox, PgPool),
    MySql(MySqlOutbox, MySqlPool),
    Sqlite(SqliteOutbox, SqlitePool),
}

/// Calls the same method of whichever store it is.
macro_rules! of_each {
    ($outbox:expr, $store:ident => $call:expr) => {
        match $outbox {
            Outbox::Postgres($store, _) => $call,
            Outbox::MySql($store, _) => $call,
            Outbox::Sqlite($store, _) => $call,
        }
    };
}

impl Outbox {
    /// Connects to the database. The table is not looked at.
    pub async fn open(common: &Common) -> Result<Self, BoxError> {
        let url = common.database.as_deref().ok_or_else(|| needed("database", "DATABASE_URL"))?;
        let prefix = common.table_prefix.as_str();
        match url.split(':').next() {
            Some("postgres" | "postgresql") => {
                let pool = PgPoolOptions::new()
                    .acquire_timeout(CONNECT_WITHIN)
                    .connect(url)
                    .await
                    .map_err(|error| unreachable(&error))?;
                Ok(Self::Postgres(PostgresOutbox::new(pool.clone()).table_prefix(prefix)?, pool))
            }
            Some("mysql" | "mariadb") => {
                let pool = MySqlPoolOptions::new()
                    .acquire_timeout(CONNECT_WITHIN)
                    .connect(url)
                    .await
                    .map_err(|error| unreachable(&error))?;
                Ok(Self::MySql(MySqlOutbox::new(pool.clone()).table_prefix(prefix)?, pool))
            }
            Some("sqlite") => {
                let pool = SqlitePoolOptions::new()
                    .acquire_timeout(CONNECT_WITHIN)
                    .connect(url)
                    .await
                    .map_err(|error| unreachable(&error))?;
                Ok(Self::Sqlite(SqliteOutbox::new(pool.clone()).table_prefix(prefix)?, pool))
            }
            // The URL may hold a password: only its scheme is told.
            other => {
                let scheme = other.unwrap_or_default();
                Err(format!("--database: `{scheme}` is none of postgres, mysql and sqlite").into())
            }
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Postgres(..) => "PostgreSQL",
            Self::MySql(..) => "MySQL or MariaDB",
            Self::Sqlite(..) => "SQLite",
        }
    }

    pub async fn server_version(&self) -> Result<String, BoxError> {
        Ok(match self {
            Self::Postgres(_, pool) => {
                sqlx::query_scalar("SHOW server_version").fetch_one(pool).await?
            }
            Self::MySql(_, pool) => {
                sqlx::query_scalar("SELECT convert(version() USING utf8mb4)")
                    .fetch_one(pool)
                    .await?
            }
            Self::Sqlite(_, pool) => {
                sqlx::query_scalar("SELECT sqlite_version()").fetch_one(pool).await?
            }
        })
    }

    pub async fn check(&self) -> acemq::Result<()> {
        of_each!(self, store => store.check().await)
    }

    pub async fn pending_count(&self) -> acemq::Result<u64> {
        of_each!(self, store => store.pending_count().await)
    }

    pub async fn oldest_pending_age(&self) -> acemq::Result<Option<Duration>> {
        of_each!(self, store => store.oldest_pending_age().await)
    }

    pub async fn retired(&self, limit: u32) -> acemq::Result<Vec<RetiredRecord>> {
        of_each!(self, store => store.retired(limit).await)
    }

    pub async fn scheduled(&self, limit: u32) -> acemq::Result<Vec<ScheduledRecord>> {
        of_each!(self, store => store.scheduled(limit).await)
    }

    /// Cancels a delayed record in a transaction of its own.
    pub async fn cancel(&self, id: &str) -> Result<bool, BoxError> {
        /// Begins, cancels and commits.
        macro_rules! alone {
            ($store:expr, $begun:expr) => {{
                let mut transaction = $begun;
                let is_cancelled = $store.cancel(&mut transaction, id).await?;
                transaction.commit().await?;
                is_cancelled
            }};
        }
        Ok(match self {
            Self::Postgres(store, pool) => alone!(store, pool.begin().await?),
            Self::MySql(store, pool) => alone!(store, pool.begin().await?),
            Self::Sqlite(store, _) => alone!(store, store.begin().await?),
        })
    }

    pub async fn requeue(&self, seqs: &[i64]) -> acemq::Result<u64> {
        of_each!(self, store => store.requeue(seqs).await)
    }

    pub async fn purge(&self, older_than: Duration, limit: u32) -> acemq::Result<u64> {
        of_each!(self, store => store.purge(older_than, limit).await)
    }
}

/// A driver's error can hold the address, but never the password.
fn unreachable(error: &sqlx::Error) -> BoxError {
    format!("the database cannot be reached: {error}").into()
}
