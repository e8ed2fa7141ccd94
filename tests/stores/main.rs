//! The contract of the stores, one suite for every database, and the relay on top of it.

mod db;
mod idempotency;
#[cfg(feature = "mysql")]
mod mysql;
mod outbox;
mod postgres;
mod relay;
mod sqlite;
mod target;
