//! SQLite: migrations in an immediate transaction, and the columns of a table.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Sqlite, SqlitePool, Transaction, query::Query, sqlite::SqliteArguments};

use super::{Column, Migration, Prefix, compare_columns, failed, run_to_end};
use crate::error::Result;

const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS {prefix}schema (
    pattern TEXT    PRIMARY KEY,
    version INTEGER NOT NULL
);
";

const RECORD: &str = "\
INSERT INTO {prefix}schema (pattern, version) VALUES ({pattern}, {version})
ON CONFLICT (pattern) DO UPDATE SET version = max(version, excluded.version)";

/// The database's clock: milliseconds since the epoch, the same throughout a statement.
pub(crate) const NOW: &str = "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";

/// Begins a transaction that takes the write lock at once, so that contention is waiting: a
/// deferred one that reads first is refused at its first write, whatever the busy timeout.
pub(crate) async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>> {
    let pool = pool.clone();
    run_to_end("begin a transaction", async move {
        pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed("begin a transaction"))
    })
    .await
}

/// Brings a pattern's tables to the latest version; the write lock lets one process at a time.
pub(crate) async fn migrate(
    pool: &SqlitePool,
    prefix: &Prefix,
    migration: &'static Migration,
) -> Result<()> {
    let (pool, prefix) = (pool.clone(), prefix.clone());
    run_to_end("migrate its tables", async move {
        apply(&pool, &prefix, migration).await.map_err(failed("migrate its tables"))
    })
    .await
}

async fn apply(pool: &SqlitePool, prefix: &Prefix, migration: &Migration) -> sqlx::Result<()> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::raw_sql(AssertSqlSafe(prefix.fill(SCHEMA))).execute(&mut *tx).await?;
    let version = prefix.fill("SELECT version FROM {prefix}schema WHERE pattern = ?");
    let done: Option<i32> = sqlx::query_scalar(AssertSqlSafe(version))
        .bind(migration.pattern)
        .fetch_optional(&mut *tx)
        .await?;
    for sql in migration.after(done.unwrap_or(0)) {
        sqlx::raw_sql(AssertSqlSafe(prefix.fill(sql))).execute(&mut *tx).await?;
    }
    let record = RECORD.replace("{pattern}", "?").replace("{version}", "?");
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
pub(crate) async fn check(pool: &SqlitePool, table: &str, wanted: &[Column]) -> Result<()> {
    let found: Vec<(String, String)> =
        sqlx::query_as("SELECT name, type FROM pragma_table_info(?)")
            .bind(table)
            .fetch_all(pool)
            .await
            .map_err(failed("read the columns of its table"))?;
    compare_columns(table, &found, wanted)
}

/// A prepared statement of the library's own text.
pub(crate) fn query(sql: &Arc<str>) -> Query<'static, Sqlite, SqliteArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// Runs one statement and returns how many rows it changed.
pub(crate) async fn execute(
    pool: &SqlitePool,
    query: Query<'static, Sqlite, SqliteArguments>,
    action: &'static str,
) -> Result<u64> {
    Ok(query.execute(pool).await.map_err(failed(action))?.rows_affected())
}
