//! The tables: their names, their versions and their columns.

use crate::error::{Error, Result};

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
