//! Handled messages in SQLite.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{Row, Sqlite, SqliteExecutor, SqlitePool, Transaction};
use uuid::Uuid;

use super::{
    Claim, IdempotencyStore, check_key,
    statements::{CLAIMED, CONFIRMED, SQLITE, Settings, Statements, answer},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, Prefix, failed, sql_millis,
        sqlite::{self, NOW, query},
    },
};

const MIGRATION: Migration = Migration {
    pattern: "idempotency",
    versions: &[include_str!("../../migrations/sqlite/idempotency.sql")],
};

const COLUMNS: &[Column] = &[
    ("consumer", "text"),
    ("message_id", "text"),
    ("state", "text"),
    ("claimed_by", "text"),
    ("recorded_at", "integer"),
    ("expires_at", "integer"),
];

/// Remembers handled messages in a SQLite table.
///
/// Cheap to clone. Writers wait for each other, at most the pool's `busy_timeout`. Time is the
/// database's clock, which in SQLite is this machine's.
#[derive(Debug, Clone)]
pub struct SqliteIdempotencyStore {
    pool: SqlitePool,
    settings: Settings,
    statements: Arc<Statements>,
}

impl SqliteIdempotencyStore {
    /// Creates a store over the table `acemq_idempotency`. Nothing is read or written yet.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self::assemble(pool, Settings::new(NOW))
    }

    /// Claims a message in the transaction of the work itself, so that both commit together.
    ///
    /// After [`Claim::Claimed`] the message counts as handled once the transaction commits, and as
    /// never seen if it rolls back; the token is of no further use. Writers wait for each other,
    /// so no other transaction holds the message meanwhile. [`Claim::InProgress`] means a claim
    /// made outside a transaction: try later, do not acknowledge.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`](crate::Error::InvalidOption) for a name or id over 255 bytes.
    /// - [`Error::Store`](crate::Error::Store) if the database fails.
    pub async fn claim_in(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        message_id: &str,
    ) -> Result<Claim> {
        let live = self.settings.retention;
        self.claim(&mut **transaction, (consumer, message_id), CONFIRMED, live).await
    }

    /// Begins a transaction that holds the write lock from the start.
    pub(crate) async fn begin_transaction(&self) -> Result<Transaction<'static, Sqlite>> {
        sqlite::begin(&self.pool).await
    }

    async fn claim_on_pool(&self, consumer: &str, message_id: &str) -> Result<Claim> {
        self.claim(&self.pool, (consumer, message_id), CLAIMED, self.settings.lease).await
    }

    async fn claim(
        &self,
        executor: impl SqliteExecutor<'_>,
        (consumer, message_id): (&str, &str),
        state: &str,
        live: Duration,
    ) -> Result<Claim> {
        check_key(consumer, message_id)?;
        let token = Uuid::new_v4();
        let row = query(&self.statements.claim)
            .bind(consumer)
            .bind(message_id)
            .bind(db_token(token))
            .bind(sql_millis(live))
            .bind(state)
            .fetch_one(executor)
            .await
            .map_err(failed("claim a message"))?;
        let state: String = row.try_get("state").map_err(failed("read a claim"))?;
        Ok(answer(token, row.try_get("mine").map_err(failed("read a claim"))?, &state))
    }
}

/// A token as this database holds it.
fn db_token(token: Uuid) -> String {
    token.to_string()
}

shared_methods!(SqliteIdempotencyStore, SqlitePool, SQLITE, sqlite);
