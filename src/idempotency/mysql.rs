//! Handled messages in MySQL and MariaDB.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{MySql, MySqlConnection, MySqlPool, Row, Transaction};
use uuid::Uuid;

use super::{
    Claim, IdempotencyStore, check_key,
    statements::{CLAIMED, CONFIRMED, MYSQL, Settings, Statements, answer},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, Prefix, failed,
        mysql::{self, NOW, query},
        run_to_end, sql_millis,
    },
};

const MIGRATION: Migration = Migration {
    pattern: "idempotency",
    versions: &[include_str!("../../migrations/mysql/idempotency.sql")],
};

const COLUMNS: &[Column] = &[
    ("consumer", "varbinary"),
    ("message_id", "varbinary"),
    ("state", "varchar"),
    ("claimed_by", "varchar"),
    ("recorded_at", "bigint"),
    ("expires_at", "bigint"),
];

/// Remembers handled messages in a MySQL or MariaDB table.
///
/// Cheap to clone. Time is the database's: the application's clock may be wrong.
#[derive(Debug, Clone)]
pub struct MySqlIdempotencyStore {
    pool: MySqlPool,
    settings: Settings,
    statements: Arc<Statements>,
}

impl MySqlIdempotencyStore {
    /// Creates a store over the table `acemq_idempotency`. Nothing is read or written yet.
    #[must_use]
    pub fn new(pool: MySqlPool) -> Self {
        Self::assemble(pool, Settings::new(NOW))
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
        transaction: &mut Transaction<'_, MySql>,
        consumer: &str,
        message_id: &str,
    ) -> Result<Claim> {
        let live = self.settings.retention;
        self.claim(transaction, (consumer, message_id), CONFIRMED, live).await
    }

    /// Begins a transaction.
    pub(crate) async fn begin_transaction(&self) -> Result<Transaction<'static, MySql>> {
        mysql::begin(&self.pool).await
    }

    /// Two statements on one connection, each its own transaction; the token tells who won. Runs
    /// to its end, since a claim that nobody knows of would hold the message for a lease.
    async fn claim_on_pool(&self, consumer: &str, message_id: &str) -> Result<Claim> {
        let (store, key) = (self.clone(), (consumer.to_owned(), message_id.to_owned()));
        run_to_end("claim a message", async move {
            let mut connection = store.pool.acquire().await.map_err(failed("claim a message"))?;
            let live = store.settings.lease;
            store.claim(&mut connection, (&key.0, &key.1), CLAIMED, live).await
        })
        .await
    }

    async fn claim(
        &self,
        connection: &mut MySqlConnection,
        (consumer, message_id): (&str, &str),
        state: &str,
        live: Duration,
    ) -> Result<Claim> {
        check_key(consumer, message_id)?;
        let token = Uuid::new_v4();
        query(&self.statements.claim)
            .bind(consumer)
            .bind(message_id)
            .bind(db_token(token))
            .bind(sql_millis(live))
            .bind(state)
            .execute(&mut *connection)
            .await
            .map_err(failed("claim a message"))?;
        let row = query(&self.statements.claimed)
            .bind(consumer)
            .bind(message_id)
            .fetch_optional(connection)
            .await
            .map_err(failed("read a claim"))?;
        // Without a row it was deleted in between: its owner has just given up or been forgotten.
        let Some(row) = row else { return Ok(Claim::InProgress) };
        let state: String = row.try_get("state").map_err(failed("read a claim"))?;
        let owner: Option<String> = row.try_get("claimed_by").map_err(failed("read a claim"))?;
        Ok(answer(token, owner.as_deref() == Some(db_token(token).as_str()), &state))
    }
}

/// A token as this database holds it.
fn db_token(token: Uuid) -> String {
    token.to_string()
}

shared_methods!(MySqlIdempotencyStore, MySqlPool, MYSQL, mysql);
