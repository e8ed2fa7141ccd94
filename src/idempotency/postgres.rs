//! Handled messages in PostgreSQL.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{PgExecutor, PgPool, Postgres, Row, Transaction};
use uuid::Uuid;

use super::{
    Claim, IdempotencyStore, check_key,
    statements::{CLAIMED, CONFIRMED, POSTGRES, Settings, Statements, answer},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, Prefix, failed,
        postgres::{self, query},
        sql_millis,
    },
};

const MIGRATION: Migration = Migration {
    pattern: "idempotency",
    versions: &[include_str!("../../migrations/postgres/idempotency.sql")],
};

const COLUMNS: &[Column] = &[
    ("consumer", "text|character varying"),
    ("message_id", "text|character varying"),
    ("state", "text|character varying"),
    ("claimed_by", "uuid"),
    ("recorded_at", "timestamp with time zone"),
    ("expires_at", "timestamp with time zone"),
];

/// Remembers handled messages in a PostgreSQL table.
///
/// Cheap to clone. Time is the database's: the application's clock may be wrong.
#[derive(Debug, Clone)]
pub struct PostgresIdempotencyStore {
    pool: PgPool,
    settings: Settings,
    statements: Arc<Statements>,
}

impl PostgresIdempotencyStore {
    /// Creates a store over the table `acemq_idempotency`. Nothing is read or written yet.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::assemble(pool, Settings::new("now()"))
    }

    /// Claims a message in the transaction of the work itself, so that both commit together.
    ///
    /// After [`Claim::Claimed`] the message counts as handled once the transaction commits, and as
    /// never seen if it rolls back; the token is of no further use. If another transaction holds
    /// the same message, this waits for its end. [`Claim::InProgress`] means a claim made outside
    /// a transaction: try later, do not acknowledge.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`](crate::Error::InvalidOption) for a name or id over 255 bytes.
    /// - [`Error::Store`](crate::Error::Store) if the database fails.
    pub async fn claim_in(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        consumer: &str,
        message_id: &str,
    ) -> Result<Claim> {
        let live = self.settings.retention;
        self.claim(&mut **transaction, (consumer, message_id), CONFIRMED, live).await
    }

    /// Begins a transaction.
    pub(crate) async fn begin_transaction(&self) -> Result<Transaction<'static, Postgres>> {
        postgres::begin(&self.pool).await
    }

    async fn claim_on_pool(&self, consumer: &str, message_id: &str) -> Result<Claim> {
        self.claim(&self.pool, (consumer, message_id), CLAIMED, self.settings.lease).await
    }

    async fn claim(
        &self,
        executor: impl PgExecutor<'_>,
        (consumer, message_id): (&str, &str),
        state: &str,
        live: Duration,
    ) -> Result<Claim> {
        check_key(consumer, message_id)?;
        let token = Uuid::new_v4();
        let row = query(&self.statements.claim)
            .bind(consumer)
            .bind(message_id)
            .bind(token)
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
fn db_token(token: Uuid) -> Uuid {
    token
}

shared_methods!(PostgresIdempotencyStore, PgPool, POSTGRES, postgres);
