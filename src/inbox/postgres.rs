//! Handled messages in PostgreSQL, noted in the transaction of the work.

use sqlx::Postgres;

use super::{Inbox, OwnedTransaction};
use crate::{
    error::Result,
    idempotency::{Claim, IdempotencyStore, PostgresIdempotencyStore},
};

/// The store's table of handled messages, and its pool.
impl Inbox for PostgresIdempotencyStore {
    type Database = Postgres;

    async fn begin(&self) -> Result<OwnedTransaction<Postgres>> {
        self.begin_transaction().await
    }

    async fn claim(
        &self,
        transaction: &mut OwnedTransaction<Postgres>,
        consumer: &str,
        message_id: &str,
    ) -> Result<Claim> {
        self.claim_in(transaction, consumer, message_id).await
    }

    async fn purge(&self, limit: u32) -> Result<u64> {
        IdempotencyStore::purge(self, limit).await
    }
}
