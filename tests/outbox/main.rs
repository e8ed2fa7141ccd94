//! The outbox on real servers, under failure: nothing lost, nothing invented, order per key.

#[path = "../support/mod.rs"]
mod support;

mod relays;
mod rows;
