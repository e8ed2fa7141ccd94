//! PostgreSQL: migrations under an advisory lock, and the columns of a table.

use std::sync::Arc;

use sqlx::{
    AssertSqlSafe, PgPool, Postgres, Transaction,
    postgres::{PgArguments, PgListener, PgPoolOptions},
    query::Query,
};

use super::{Column, Migration, Prefix, compare_columns, failed, run_to_end};
use crate::error::Result;

const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS {prefix}schema (
    pattern text    PRIMARY KEY,
    version integer NOT NULL
);
";

const RECORD: &str = "\
INSERT INTO {prefix}schema AS s (pattern, version) VALUES ({pattern}, {version})
ON CONFLICT (pattern) DO UPDATE SET version = greatest(s.version, EXCLUDED.version)";

/// Begins a transaction; a caller that goes away leaves no connection half-way.
pub(crate) async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    run_to_end("begin a transaction", async move {
        pool.begin().await.map_err(failed("begin a transaction"))
    })
    .await
}

/// Brings a pattern's tables to the latest version; the advisory lock lets one process at a time.
pub(crate) async fn migrate(
    pool: &PgPool,
    prefix: &Prefix,
    migration: &'static Migration,
) -> Result<()> {
    let (pool, prefix) = (pool.clone(), prefix.clone());
    run_to_end("migrate its tables", async move {
        apply(&pool, &prefix, migration).await.map_err(failed("migrate its tables"))
    })
    .await
}

async fn apply(pool: &PgPool, prefix: &Prefix, migration: &Migration) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
        .bind(format!("acemq schema {}", prefix.table("")))
        .execute(&mut *tx)
        .await?;
    sqlx::raw_sql(AssertSqlSafe(prefix.fill(SCHEMA))).execute(&mut *tx).await?;
    let version = prefix.fill("SELECT version FROM {prefix}schema WHERE pattern = $1");
    let done: Option<i32> = sqlx::query_scalar(AssertSqlSafe(version))
        .bind(migration.pattern)
        .fetch_optional(&mut *tx)
        .await?;
    for sql in migration.after(done.unwrap_or(0)) {
        sqlx::raw_sql(AssertSqlSafe(prefix.fill(sql))).execute(&mut *tx).await?;
    }
    let record = RECORD.replace("{pattern}", "$1").replace("{version}", "$2");
    sqlx::query(AssertSqlSafe(prefix.fill(&record)))
        .bind(migration.pattern)
        .bind(migration.latest())
        .execute(&mut *tx)
        .await?;
    tx.commit().await
}

/// The migration as a script.
pub(crate) fn script(prefix: &Prefix, migration: &Migration) -> String {
    migration.script(prefix, SCHEMA, RECORD)
}

/// Compares the columns of a table with the wanted ones.
pub(crate) async fn check(pool: &PgPool, table: &str, wanted: &[Column]) -> Result<()> {
    let found: Vec<(String, String)> = sqlx::query_as(
        "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
         WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
    )
    .bind(table)
    .fetch_all(pool)
    .await
    .map_err(failed("read the columns of its table"))?;
    compare_columns(table, &found, wanted)
}

/// A prepared statement of the library's own text.
pub(crate) fn query(sql: &Arc<str>) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// Runs one statement and returns how many rows it changed.
pub(crate) async fn execute(
    pool: &PgPool,
    query: Query<'static, Postgres, PgArguments>,
    action: &'static str,
) -> Result<u64> {
    Ok(query.execute(pool).await.map_err(failed(action))?.rows_affected())
}

/// Tells whoever listens on a channel. A statement of its own, never part of a caller's
/// transaction: a commit with a notification in it takes a lock that all such commits share.
pub(crate) async fn notify(pool: &PgPool, channel: &str) -> Result<()> {
    let told = sqlx::query("SELECT pg_notify($1, '')").bind(channel).execute(pool).await;
    told.map(drop).map_err(failed("notify"))
}

/// Calls `heard` for each notification on a channel, and once when it has begun to listen, since
/// earlier ones may have been missed. Returns when its connection, which is not one of the pool's,
/// is gone.
pub(crate) async fn listen(pool: &PgPool, channel: &str, heard: impl Fn()) -> Result<()> {
    let options = (*pool.connect_options()).clone();
    let own = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let listening = async {
        let mut listener = PgListener::connect_with(&own).await?;
        listener.eager_reconnect(false);
        listener.listen(channel).await?;
        heard();
        while listener.try_recv().await?.is_some() {
            heard();
        }
        Ok::<_, sqlx::Error>(())
    };
    listening.await.map_err(failed("listen"))
}
