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
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) use database::commit;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub use database::{Database, OwnedTransaction};

use crate::error::{BoxError, Error, Result};

/// The default prefix of every table.
pub(crate) const DEFAULT_PREFIX: &str = "acemq_";

/// The first part of the names of tables and indexes, checked so that it is safe inside SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefix(String);

impl Default for Prefix {
    fn default() -> Self {
        Self(DEFAULT_PREFIX.to_owned())
    }
}

impl Prefix {
    /// Accepts `[A-Za-z_][A-Za-z0-9_]{0,40}`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let rest = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if first && rest && text.len() <= 41 {
            return Ok(Self(text.to_owned()));
        }
        let reason = "must match [A-Za-z_][A-Za-z0-9_]{0,40}";
        Err(Error::invalid("table_prefix", text, reason))
    }

    /// The full name of a table.
    pub(crate) fn table(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    /// Writes the prefix into an SQL text that has `{prefix}` in its place.
    pub(crate) fn fill(&self, sql: &str) -> String {
        sql.replace("{prefix}", &self.0)
    }
}

/// The versions of one pattern's tables in one database, forward only.
pub(crate) struct Migration {
    /// The pattern, which is also the name of its table without the prefix.
    pub(crate) pattern: &'static str,
    /// The SQL of each version, from version 1.
    pub(crate) versions: &'static [&'static str],
}

impl Migration {
    pub(crate) fn latest(&self) -> i32 {
        i32::try_from(self.versions.len()).unwrap_or(i32::MAX)
    }

    /// The versions after `done`.
    pub(crate) fn after(&self, done: i32) -> impl Iterator<Item = &'static str> + use<> {
        self.versions.iter().copied().skip(usize::try_from(done).unwrap_or(0))
    }

    /// Everything as one script for teams that run their own migrations; it leaves the same
    /// state as `migrate()`.
    pub(crate) fn script(&self, prefix: &Prefix, schema: &str, record: &str) -> String {
        let record = record
            .replace("{pattern}", &format!("'{}'", self.pattern))
            .replace("{version}", &self.latest().to_string());
        let parts = [schema].into_iter().chain(self.versions.iter().copied());
        let mut script: String = parts.map(|sql| prefix.fill(sql)).collect();
        script.push_str(&prefix.fill(&record));
        script.push_str(";\n");
        script
    }
}

/// A column that a store needs: its name and its type, alternatives parted by `|`.
pub(crate) type Column = (&'static str, &'static str);

/// Compares the columns that a table has with the ones that it needs.
pub(crate) fn compare_columns(
    table: &str,
    found: &[(String, String)],
    wanted: &[Column],
) -> Result<()> {
    let schema = |problem: String| Err(Error::Schema { table: table.to_owned(), problem });
    if found.is_empty() {
        return schema("the table does not exist; run `migrate()` first".to_owned());
    }
    for (name, kinds) in wanted {
        let Some((_, has)) = found.iter().find(|(column, _)| column.eq_ignore_ascii_case(name))
        else {
            return schema(format!("column `{name}` is missing"));
        };
        if !kinds.split('|').any(|kind| kind.eq_ignore_ascii_case(has)) {
            return schema(format!("column `{name}` is of type {has}, but {kinds} is wanted"));
        }
    }
    Ok(())
}

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
pub(crate) fn sql_millis(duration: Duration) -> i64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_is_not_a_plain_name_is_refused() {
        for good in ["a", "_", "acemq_", "Shop2_", &"x".repeat(41)] {
            assert!(Prefix::parse(good).is_ok(), "{good} should be accepted");
        }
        for bad in ["", "2x", "a-b", "a b", "a;drop table x", "ä", "a.b", &"x".repeat(42)] {
            assert!(Prefix::parse(bad).is_err(), "{bad} should be refused");
        }
    }

    #[test]
    fn a_missing_table_a_missing_column_and_a_wrong_type_are_named() {
        let wanted: &[Column] = &[("id", "text|varchar"), ("payload", "bytea")];
        let column = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
        let problem = |found: &[(String, String)]| {
            compare_columns("t", found, wanted).map_err(|error| error.to_string())
        };
        assert!(problem(&[]).unwrap_err().contains("does not exist"));
        assert!(problem(&[column("id", "text")]).unwrap_err().contains("`payload` is missing"));
        let wrong = problem(&[column("id", "varchar"), column("payload", "text")]).unwrap_err();
        assert_eq!(wrong, "table `t`: column `payload` is of type text, but bytea is wanted");
        assert!(problem(&[column("ID", "varchar"), column("payload", "BYTEA")]).is_ok());
    }
}
