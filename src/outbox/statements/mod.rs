//! The SQL of the outbox, one text per step and database, filled in once per store.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;

#[cfg(feature = "mysql")]
pub(super) use mysql::MYSQL;
#[cfg(feature = "postgres")]
pub(super) use postgres::POSTGRES;
#[cfg(feature = "sqlite")]
pub(super) use sqlite::SQLITE;

use super::Retired;
use crate::store::Prefix;

/// What a store of this library can be told.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) prefix: Prefix,
    pub(super) keep_published: bool,
    pub(super) retired: Retired,
    /// The SQL expression of the present time; tests of the vectors set it.
    pub(super) now: &'static str,
}

impl Settings {
    pub(super) fn new(now: &'static str) -> Self {
        Self { prefix: Prefix::default(), keep_published: true, retired: Retired::default(), now }
    }

    /// The table's name.
    pub(super) fn table(&self) -> String {
        self.prefix.table("outbox")
    }
}

/// The SQL texts of one database, with `{outbox}`, `{now}` and `{unless_skipped}` in them.
pub(super) struct Dialect {
    pub(super) insert: &'static str,
    pub(super) insert_many: &'static str,
    pub(super) claim: &'static str,
    /// The further steps of a claim, where it takes several; else empty.
    pub(super) claim_keys: &'static str,
    pub(super) claim_keyed: &'static str,
    pub(super) claimed: &'static str,
    pub(super) mark_published: &'static str,
    pub(super) delete_published: &'static str,
    pub(super) mark_failed: &'static str,
    pub(super) renew: &'static str,
    pub(super) release: &'static str,
    pub(super) pending_count: &'static str,
    pub(super) oldest_pending: &'static str,
    pub(super) retired: &'static str,
    pub(super) scheduled: &'static str,
    pub(super) find_scheduled: &'static str,
    pub(super) cancel: &'static str,
    pub(super) requeue: &'static str,
    pub(super) purge: &'static str,
    /// Deletes what a purge has found, where that is a step of its own; else empty.
    pub(super) purged: &'static str,
}

/// The statements of one store.
#[derive(Debug)]
pub(super) struct Statements {
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(dead_code, reason = "MySQL adds one record like many")
    )]
    pub(super) insert: Arc<str>,
    pub(super) insert_many: Arc<str>,
    pub(super) claim: Arc<str>,
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MySQL claims in steps"))]
    pub(super) claim_keys: Arc<str>,
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MySQL claims in steps"))]
    pub(super) claim_keyed: Arc<str>,
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MySQL claims in steps"))]
    pub(super) claimed: Arc<str>,
    pub(super) mark_published: Arc<str>,
    pub(super) mark_failed: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) release: Arc<str>,
    pub(super) pending_count: Arc<str>,
    pub(super) oldest_pending: Arc<str>,
    pub(super) retired: Arc<str>,
    pub(super) scheduled: Arc<str>,
    pub(super) find_scheduled: Arc<str>,
    pub(super) cancel: Arc<str>,
    pub(super) requeue: Arc<str>,
    pub(super) purge: Arc<str>,
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MySQL purges in steps"))]
    pub(super) purged: Arc<str>,
}

impl Statements {
    pub(super) fn new(dialect: &Dialect, settings: &Settings) -> Self {
        let table = settings.table();
        let unless_skipped = match settings.retired {
            Retired::BlockKey => "",
            Retired::SkipRecord => "AND e.retired_at IS NULL",
        };
        let fill = |sql: &str| -> Arc<str> {
            sql.replace("{outbox}", &table)
                .replace("{now}", settings.now)
                .replace("{unless_skipped}", unless_skipped)
                .into()
        };
        let published =
            if settings.keep_published { dialect.mark_published } else { dialect.delete_published };
        Self {
            insert: fill(dialect.insert),
            insert_many: fill(dialect.insert_many),
            claim: fill(dialect.claim),
            claim_keys: fill(dialect.claim_keys),
            claim_keyed: fill(dialect.claim_keyed),
            claimed: fill(dialect.claimed),
            mark_published: fill(published),
            mark_failed: fill(dialect.mark_failed),
            renew: fill(dialect.renew),
            release: fill(dialect.release),
            pending_count: fill(dialect.pending_count),
            oldest_pending: fill(dialect.oldest_pending),
            retired: fill(dialect.retired),
            scheduled: fill(dialect.scheduled),
            find_scheduled: fill(dialect.find_scheduled),
            cancel: fill(dialect.cancel),
            requeue: fill(dialect.requeue),
            purge: fill(dialect.purge),
            purged: fill(dialect.purged),
        }
    }
}
