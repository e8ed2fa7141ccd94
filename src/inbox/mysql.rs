//! Handled messages in MariaDB and MySQL, noted in the transaction of the work.

use sqlx::MySql;

use super::{Inbox, OwnedTransaction};
use crate::{
    error::Result,
    idempotency::{Claim, IdempotencyStore, MySqlIdempotencyStore},
};

/// The store's table of handled messages, and its pool.
impl Inbox for MySqlIdempotencyStore {
    type Database = MySql;

    async fn begin(&self) -> Result<OwnedTransaction<MySql>> {
        self.begin_transaction().await
    }

    async fn claim(
        &self,
        transaction: &mut OwnedTransaction<MySql>,
        consumer: &str,
        message_id: &str,
    ) -> Result<Claim> {
        self.claim_in(transaction, consumer, message_id).await
    }

    async fn purge(&self, limit: u32) -> Result<u64> {
        IdempotencyStore::purge(self, limit).await
    }
}
