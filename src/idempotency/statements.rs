//! The SQL of the idempotency tables, one text per step and database.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use super::{Claim, DEFAULT_LEASE, DEFAULT_RETENTION};
use crate::store::Prefix;

pub(super) const CLAIMED: &str = "CLAIMED";
pub(super) const CONFIRMED: &str = "CONFIRMED";

/// What a store can be told.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) prefix: Prefix,
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    /// The SQL expression of the present time; tests of the vectors set it.
    pub(super) now: &'static str,
}

impl Settings {
    pub(super) fn new(now: &'static str) -> Self {
        let (lease, retention) = (DEFAULT_LEASE, DEFAULT_RETENTION);
        Self { prefix: Prefix::default(), lease, retention, now }
    }

    pub(super) fn table(&self) -> String {
        self.prefix.table("idempotency")
    }
}

/// The SQL texts of one database, with `{table}` and `{now}` in them.
pub(super) struct Dialect {
    /// Inserts a row, or takes an expired one over, or leaves a live one as it is. Binds key,
    /// token, milliseconds to live and state.
    pub(super) claim: &'static str,
    /// Reads what a claim left, where that is a step of its own; else empty.
    pub(super) claimed: &'static str,
    /// Binds milliseconds to live, key and token.
    pub(super) confirm: &'static str,
    /// Binds key and token.
    pub(super) release: &'static str,
    /// Binds milliseconds to live, key and token.
    pub(super) renew: &'static str,
    pub(super) forget: &'static str,
    pub(super) purge: &'static str,
}

/// The statements of one store.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim: Arc<str>,
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MySQL claims in steps"))]
    pub(super) claimed: Arc<str>,
    pub(super) confirm: Arc<str>,
    pub(super) release: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) forget: Arc<str>,
    pub(super) purge: Arc<str>,
}

impl Statements {
    pub(super) fn new(dialect: &Dialect, settings: &Settings) -> Self {
        let table = settings.table();
        let fill = |sql: &str| -> Arc<str> {
            sql.replace("{table}", &table).replace("{now}", settings.now).into()
        };
        Self {
            claim: fill(dialect.claim),
            claimed: fill(dialect.claimed),
            confirm: fill(dialect.confirm),
            release: fill(dialect.release),
            renew: fill(dialect.renew),
            forget: fill(dialect.forget),
            purge: fill(dialect.purge),
        }
    }
}

/// Reads a claim's answer from the row that it left.
pub(super) fn answer(token: Uuid, mine: bool, state: &str) -> Claim {
    match (mine, state) {
        (true, _) => Claim::Claimed(token),
        (false, CONFIRMED) => Claim::AlreadyConfirmed,
        (false, _) => Claim::InProgress,
    }
}

#[cfg(feature = "postgres")]
pub(super) const POSTGRES: Dialect = Dialect {
    claim: "
INSERT INTO {table} AS i (consumer, message_id, claimed_by, recorded_at, expires_at, state)
VALUES ($1, $2, $3, {now}, {now} + $4::bigint * interval '1 millisecond', $5)
ON CONFLICT (consumer, message_id) DO UPDATE SET
    state = CASE WHEN i.expires_at <= {now} THEN EXCLUDED.state ELSE i.state END,
    claimed_by = CASE WHEN i.expires_at <= {now} THEN EXCLUDED.claimed_by ELSE i.claimed_by END,
    recorded_at = CASE WHEN i.expires_at <= {now} THEN EXCLUDED.recorded_at ELSE i.recorded_at END,
    expires_at = CASE WHEN i.expires_at <= {now} THEN EXCLUDED.expires_at ELSE i.expires_at END
RETURNING state, claimed_by IS NOT DISTINCT FROM $3 AS mine",
    claimed: "",
    confirm: "
UPDATE {table} SET state = 'CONFIRMED', claimed_by = NULL, recorded_at = {now},
    expires_at = {now} + $1::bigint * interval '1 millisecond'
WHERE consumer = $2 AND message_id = $3 AND state = 'CLAIMED' AND claimed_by = $4",
    release: "
DELETE FROM {table}
WHERE consumer = $1 AND message_id = $2 AND state = 'CLAIMED' AND claimed_by = $3",
    renew: "
UPDATE {table} SET expires_at = {now} + $1::bigint * interval '1 millisecond'
WHERE consumer = $2 AND message_id = $3 AND state = 'CLAIMED' AND claimed_by = $4",
    forget: "
DELETE FROM {table}
WHERE consumer = $1 AND message_id = $2 AND (state = 'CONFIRMED' OR expires_at <= {now})",
    purge: "
DELETE FROM {table} WHERE (consumer, message_id) IN (
    SELECT consumer, message_id FROM {table}
    WHERE expires_at <= {now} AND (state = 'CONFIRMED'
        OR expires_at <= {now} - $1::bigint * interval '1 millisecond')
    ORDER BY expires_at LIMIT $2
    FOR UPDATE SKIP LOCKED)",
};

#[cfg(feature = "sqlite")]
pub(super) const SQLITE: Dialect = Dialect {
    claim: "
INSERT INTO {table} AS i (consumer, message_id, claimed_by, recorded_at, expires_at, state)
VALUES (?1, ?2, ?3, {now}, {now} + ?4, ?5)
ON CONFLICT (consumer, message_id) DO UPDATE SET
    state = CASE WHEN i.expires_at <= {now} THEN excluded.state ELSE i.state END,
    claimed_by = CASE WHEN i.expires_at <= {now} THEN excluded.claimed_by ELSE i.claimed_by END,
    recorded_at = CASE WHEN i.expires_at <= {now} THEN excluded.recorded_at ELSE i.recorded_at END,
    expires_at = CASE WHEN i.expires_at <= {now} THEN excluded.expires_at ELSE i.expires_at END
RETURNING state, claimed_by IS ?3 AS mine",
    claimed: "",
    confirm: "
UPDATE {table} SET state = 'CONFIRMED', claimed_by = NULL, recorded_at = {now},
    expires_at = {now} + ?1
WHERE consumer = ?2 AND message_id = ?3 AND state = 'CLAIMED' AND claimed_by = ?4",
    release: "
DELETE FROM {table}
WHERE consumer = ?1 AND message_id = ?2 AND state = 'CLAIMED' AND claimed_by = ?3",
    renew: "
UPDATE {table} SET expires_at = {now} + ?1
WHERE consumer = ?2 AND message_id = ?3 AND state = 'CLAIMED' AND claimed_by = ?4",
    forget: "
DELETE FROM {table}
WHERE consumer = ?1 AND message_id = ?2 AND (state = 'CONFIRMED' OR expires_at <= {now})",
    purge: "
DELETE FROM {table} WHERE (consumer, message_id) IN (
    SELECT consumer, message_id FROM {table}
    WHERE expires_at <= {now} AND (state = 'CONFIRMED' OR expires_at <= {now} - ?1)
    ORDER BY expires_at LIMIT ?2)",
};

#[cfg(feature = "mysql")]
pub(super) const MYSQL: Dialect = Dialect {
    // Assigned from left to right: the end, which the conditions read, comes last.
    claim: "
INSERT INTO {table} (consumer, message_id, claimed_by, recorded_at, expires_at, state)
VALUES (?, ?, ?, {now}, {now} + ?, ?)
ON DUPLICATE KEY UPDATE
    state = if(expires_at <= {now}, VALUES(state), state),
    claimed_by = if(expires_at <= {now}, VALUES(claimed_by), claimed_by),
    recorded_at = if(expires_at <= {now}, VALUES(recorded_at), recorded_at),
    expires_at = if(expires_at <= {now}, VALUES(expires_at), expires_at)",
    // A locking read sees the row as it is, not as it was when the transaction began.
    claimed: "
SELECT state, claimed_by FROM {table} WHERE consumer = ? AND message_id = ? FOR UPDATE",
    confirm: "
UPDATE {table} SET state = 'CONFIRMED', claimed_by = NULL, recorded_at = {now},
    expires_at = {now} + ?
WHERE consumer = ? AND message_id = ? AND state = 'CLAIMED' AND claimed_by = ?",
    release: "
DELETE FROM {table}
WHERE consumer = ? AND message_id = ? AND state = 'CLAIMED' AND claimed_by = ?",
    renew: "
UPDATE {table} SET expires_at = {now} + ?
WHERE consumer = ? AND message_id = ? AND state = 'CLAIMED' AND claimed_by = ?",
    forget: "
DELETE FROM {table}
WHERE consumer = ? AND message_id = ? AND (state = 'CONFIRMED' OR expires_at <= {now})",
    purge: "
DELETE FROM {table}
WHERE expires_at <= {now} AND (state = 'CONFIRMED' OR expires_at <= {now} - ?)
ORDER BY expires_at LIMIT ?",
};
