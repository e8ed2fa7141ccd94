//! The SQL idempotency stores as inboxes: their table of handled messages, and their pool.

use std::time::Duration;

use super::{Inbox, OwnedTransaction};
use crate::{
    error::Result,
    idempotency::{self, Claim, IdempotencyStore},
    store,
};

macro_rules! inbox {
    ($feature:literal, $store:ident, $database:ident) => {
        #[cfg(feature = $feature)]
        impl Inbox for idempotency::$store {
            type Database = store::$database;

            async fn begin(&self) -> Result<OwnedTransaction<store::$database>> {
                self.begin_transaction().await
            }

            async fn claim(
                &self,
                transaction: &mut OwnedTransaction<store::$database>,
                consumer: &str,
                message_id: &str,
            ) -> Result<Claim> {
                self.claim_in(transaction, consumer, message_id).await
            }

            fn retention(&self) -> Option<Duration> {
                IdempotencyStore::retention(self)
            }

            async fn purge(&self, limit: u32) -> Result<u64> {
                IdempotencyStore::purge(self, limit).await
            }
        }
    };
}

inbox!("postgres", PostgresIdempotencyStore, Postgres);
inbox!("sqlite", SqliteIdempotencyStore, Sqlite);
inbox!("mysql", MySqlIdempotencyStore, MySql);
