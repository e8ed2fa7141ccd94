//! What the SQL stores of the patterns share: table names, migrations, schema checks, the stored
//! form of headers.
//!
//! Each pattern's tables are named `{prefix}{pattern}`; `{prefix}schema` records which version of
//! each pattern's tables is in place. An application's own migration table is never touched.

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod database;
pub(crate) mod headers_json;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod schema;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) use schema::{Column, Migration, Prefix, compare_columns};

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub use database::{Database, OwnedTransaction};
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) use database::{begun, commit};
#[cfg(feature = "mysql")]
pub(crate) use sqlx::MySql;
#[cfg(feature = "postgres")]
pub(crate) use sqlx::Postgres;
#[cfg(feature = "sqlite")]
pub(crate) use sqlx::Sqlite;

use crate::error::{BoxError, Error, Result};

/// Turns a driver's error into [`Error::Store`]; `action` is a verb phrase.
pub(crate) fn failed<E: Into<BoxError>>(action: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Store { action, source: source.into() }
}

/// Runs work of several statements to its end, even if the caller's future is dropped: a
/// transaction that is dropped half-way would leave its connection in an unknown state.
pub(crate) async fn run_to_end<T: Send + 'static>(
    action: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(failed(action)(error)))
}

/// Whole milliseconds for SQL, at most a hundred years so that no database overflows.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) fn sql_millis(duration: std::time::Duration) -> i64 {
    const MAX: u64 = 100 * 366 * 86_400_000;
    i64::try_from(crate::clock::millis(duration).min(MAX)).unwrap_or(i64::MAX)
}

/// Refuses text that some database or AMQP itself could not hold in a short column: more than 255
/// bytes, or a NUL character.
pub(crate) fn check_short_text(option: &'static str, text: &str) -> Result<()> {
    crate::topology::check_length(option, text)?;
    if text.contains('\0') {
        return Err(Error::invalid(option, text.escape_default(), "contains a NUL character"));
    }
    Ok(())
}
