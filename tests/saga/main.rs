//! Sagas: in memory against a small model, and with a journal on every database.

#[path = "../support/mod.rs"]
mod support;

mod building;
mod dropping;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod durable;
mod model;
mod parallel;
mod trying;

use std::sync::{Arc, Mutex};

/// What happened, in its order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}
