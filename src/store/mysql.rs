//! MySQL and MariaDB: migrations under a named lock, and the columns of a table.

use std::sync::Arc;

use sqlx::{
    AssertSqlSafe, Connection, MySql, MySqlConnection, MySqlPool, Transaction,
    mysql::MySqlArguments, query::Query,
};

use super::{Column, Migration, Prefix, compare_columns, failed, run_to_end};
use crate::error::{Error, Result};

const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS {prefix}schema (
    pattern VARCHAR(64) NOT NULL PRIMARY KEY,
    version INT         NOT NULL
) ENGINE = InnoDB;
";

const RECORD: &str = "\
INSERT INTO {prefix}schema (pattern, version) VALUES ({pattern}, {version})
ON DUPLICATE KEY UPDATE version = greatest(version, VALUES(version))";

/// The database's clock: milliseconds since the epoch, whatever the session's time zone, the same
/// throughout a statement.
pub(crate) const NOW: &str =
    "(timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(3)) DIV 1000)";

/// Brings a pattern's tables to the latest version; the named lock lets one process at a time.
///
/// MySQL commits each change of a table by itself, so that a migration that was cut off is taken up
/// where it stopped.
pub(crate) async fn migrate(
    pool: &MySqlPool,
    prefix: &Prefix,
    migration: &'static Migration,
) -> Result<()> {
    let (pool, prefix) = (pool.clone(), prefix.clone());
    run_to_end("migrate its tables", async move {
        locked(&pool, &prefix, migration).await.map_err(failed("migrate its tables"))
    })
    .await
}

async fn locked(pool: &MySqlPool, prefix: &Prefix, migration: &Migration) -> sqlx::Result<()> {
    let mut connection = pool.acquire().await?;
    let name = format!("acemq schema {}", prefix.table(""));
    let taken: Option<i64> = sqlx::query_scalar("SELECT get_lock(?, 60)")
        .bind(&name)
        .fetch_one(&mut *connection)
        .await?;
    if taken != Some(1) {
        return Err(sqlx::Error::Protocol(format!("the lock `{name}` is not free")));
    }
    let applied = apply(&mut connection, prefix, migration).await;
    sqlx::query("DO release_lock(?)").bind(&name).execute(&mut *connection).await?;
    applied
}

async fn apply(
    connection: &mut MySqlConnection,
    prefix: &Prefix,
    migration: &Migration,
) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(prefix.fill(SCHEMA))).execute(&mut *connection).await?;
    let version = prefix.fill("SELECT version FROM {prefix}schema WHERE pattern = ?");
    let done: Option<i32> = sqlx::query_scalar(AssertSqlSafe(version))
        .bind(migration.pattern)
        .fetch_optional(&mut *connection)
        .await?;
    for sql in migration.after(done.unwrap_or(0)) {
        sqlx::raw_sql(AssertSqlSafe(prefix.fill(sql))).execute(&mut *connection).await?;
    }
    let record = RECORD.replace("{pattern}", "?").replace("{version}", "?");
    sqlx::query(AssertSqlSafe(prefix.fill(&record)))
        .bind(migration.pattern)
        .bind(migration.latest())
        .execute(&mut *connection)
        .await?;
    Ok(())
}

/// Takes a named lock, which belongs to the connection, if it is free; names are cut to the 64
/// characters that MySQL allows.
pub(crate) async fn try_lock(connection: &mut MySqlConnection, name: &str) -> sqlx::Result<bool> {
    let taken: Option<i64> = sqlx::query_scalar("SELECT get_lock(left(?, 64), 0)")
        .bind(name)
        .fetch_one(connection)
        .await?;
    Ok(taken == Some(1))
}

/// Gives a named lock back.
pub(crate) async fn unlock(connection: &mut MySqlConnection, name: &str) -> sqlx::Result<()> {
    sqlx::query("DO release_lock(left(?, 64))").bind(name).execute(connection).await.map(drop)
}

/// The migration as a script.
pub(crate) fn script(prefix: &Prefix, migration: &Migration) -> String {
    migration.script(prefix, SCHEMA, RECORD)
}

/// Compares the server's version and the columns of a table with the wanted ones.
pub(crate) async fn check(pool: &MySqlPool, table: &str, wanted: &[Column]) -> Result<()> {
    let version: String = sqlx::query_scalar("SELECT convert(version() USING utf8mb4)")
        .fetch_one(pool)
        .await
        .map_err(failed("read the version of its database"))?;
    if !has_skip_locked(&version) {
        let problem = format!("the server is {version}; MySQL 8.0.4 or MariaDB 10.6 is needed");
        return Err(Error::Schema { table: table.to_owned(), problem });
    }
    let found: Vec<(String, String)> = sqlx::query_as(
        "SELECT convert(column_name USING utf8mb4), convert(data_type USING utf8mb4)
         FROM information_schema.columns WHERE table_schema = database() AND table_name = ?",
    )
    .bind(table)
    .fetch_all(pool)
    .await
    .map_err(failed("read the columns of its table"))?;
    compare_columns(table, &found, wanted)
}

/// Whether a server has `SKIP LOCKED` and `JSON_TABLE`; a version that cannot be read may have.
fn has_skip_locked(version: &str) -> bool {
    let numbers: Vec<u32> =
        version.split(['.', '-']).map_while(|part| part.parse().ok()).take(3).collect();
    match numbers[..] {
        [major, minor, ..] if version.contains("MariaDB") => (major, minor) >= (10, 6),
        [major, minor, patch] => (major, minor, patch) >= (8, 0, 4),
        _ => true,
    }
}

/// A prepared statement of the library's own text.
pub(crate) fn query(sql: &Arc<str>) -> Query<'static, MySql, MySqlArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// Runs one statement and returns how many rows it changed.
pub(crate) async fn execute(
    pool: &MySqlPool,
    query: Query<'static, MySql, MySqlArguments>,
    action: &'static str,
) -> Result<u64> {
    Ok(query.execute(pool).await.map_err(failed(action))?.rows_affected())
}

/// Begins a transaction that locks only the rows it changes, for a caller to keep.
pub(crate) async fn begin(pool: &MySqlPool) -> Result<Transaction<'static, MySql>> {
    const BEGIN: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";
    let pool = pool.clone();
    run_to_end("begin a transaction", async move {
        pool.begin_with(BEGIN).await.map_err(failed("begin a transaction"))
    })
    .await
}

/// Begins a transaction that locks only the rows it changes: the default isolation would lock the
/// gaps between them, against inserts.
pub(crate) async fn begin_read_committed(
    connection: &mut MySqlConnection,
) -> sqlx::Result<Transaction<'_, MySql>> {
    sqlx::query("SET TRANSACTION ISOLATION LEVEL READ COMMITTED").execute(&mut *connection).await?;
    connection.begin().await
}

/// Whether a statement lost a deadlock or waited too long for a lock: it can be tried again.
pub(crate) fn is_contention(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| {
        error
            .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
            .is_some_and(|error| matches!(error.number(), 1205 | 1213))
    })
}

#[cfg(test)]
mod tests {
    use super::has_skip_locked;

    #[test]
    fn old_servers_are_told_apart() {
        for new in ["8.0.4", "8.4.0-log", "10.6.1-MariaDB", "10.11.19-MariaDB-0+deb12u1", "9.1.0"] {
            assert!(has_skip_locked(new), "{new}");
        }
        for old in ["5.7.44", "8.0.3-rc", "10.5.23-MariaDB"] {
            assert!(!has_skip_locked(old), "{old}");
        }
    }
}
