//! Faults of the whole broker: alarms, restarts, limits that are set for all connections.
//!
//! They disturb everything else that runs on the broker, so they run alone: after all other tests,
//! one at a time. `scripts/test.sh` does that, by the nextest profile `broker-wide`.

#[path = "../support/mod.rs"]
mod support;

mod acknowledgement_timeout;
mod calls;
mod memory_alarm;
mod restart;

use std::fs::File;

/// Keeps the others of these tests away, in this process and in another.
fn alone() -> File {
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/broker-wide.lock");
    let file = File::create(path).unwrap();
    file.lock().unwrap();
    file
}
