//! Exactly-once effects: transactional and idempotent consumers, on every database.

#[path = "../support/mod.rs"]
mod support;

mod bank;
mod claims;
mod kills;
mod transactions;
