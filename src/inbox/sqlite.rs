//! Handled messages in SQLite, noted in the transaction of the work.

use sqlx::Sqlite;

use super::{Inbox, OwnedTransaction};
use crate::{
    error::Result,
    idempotency::{Claim, IdempotencyStore, SqliteIdempotencyStore},
};

/// The store's table of handled messages, and its pool.
impl Inbox for SqliteIdempotencyStore {
    type Database = Sqlite;

    async fn begin(&self) -> Result<OwnedTransaction<Sqlite>> {
        self.begin_transaction().await
    }

    async fn claim(
        &self,
        transaction: &mut OwnedTransaction<Sqlite>,
        consumer: &str,
        message_id: &str,
    ) -> Result<Claim> {
        self.claim_in(transaction, consumer, message_id).await
    }

    async fn purge(&self, limit: u32) -> Result<u64> {
        IdempotencyStore::purge(self, limit).await
    }
}
