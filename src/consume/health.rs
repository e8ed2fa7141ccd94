//! How a consumer is.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;

use super::{ConsumerState, counters::Counters};
use crate::connection::{ComponentHealth, HealthSource};

/// What the health of a consumer is read from.
pub(super) struct ConsumerHealth {
    pub(super) queue: String,
    pub(super) counters: Arc<Counters>,
    pub(super) state: watch::Receiver<ConsumerState>,
}

impl ConsumerHealth {
    fn look(&self) -> ComponentHealth {
        let stats = self.counters.snapshot();
        let health = ComponentHealth::up("consumer", self.queue.as_str())
            .detail("received", stats.received)
            .detail("in_flight", stats.in_flight)
            .detail("dead_lettered", stats.dead_lettered)
            .detail("parked", stats.parked);
        match &*self.state.borrow() {
            ConsumerState::Running => health,
            ConsumerState::Paused => health.detail("paused", true),
            ConsumerState::Waiting(reason) => health.degraded(format!("not subscribed: {reason}")),
            ConsumerState::Closed => health.down("closed"),
        }
    }
}

impl HealthSource for ConsumerHealth {
    fn health(&self) -> BoxFuture<'_, ComponentHealth> {
        std::future::ready(self.look()).boxed()
    }
}
