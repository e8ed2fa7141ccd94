//! The outbox and its relay under faults: killed and frozen processes, lost databases and brokers,
//! messages that the broker refuses.

#[path = "../support/mod.rs"]
mod support;

mod frozen;
mod health;
mod hygiene;
mod kills;
mod ledger;
mod listen;
mod moved;
mod outages;
mod refusals;
mod transactions;
mod verbatim;
mod world;
