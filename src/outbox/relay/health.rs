//! How a relay is.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use tokio_util::sync::CancellationToken;

use super::report::Stats;
use crate::{
    clock::millis,
    connection::{ComponentHealth, HealthSource},
    error::with_causes,
    outbox::OutboxStore,
};

/// What the health of a relay is read from.
pub(super) struct RelayHealth<S> {
    pub(super) store: Arc<S>,
    pub(super) stats: Arc<Stats>,
    pub(super) finished: CancellationToken,
}

impl<S: OutboxStore> HealthSource for RelayHealth<S> {
    fn health(&self) -> BoxFuture<'_, ComponentHealth> {
        self.look().boxed()
    }
}

impl<S: OutboxStore> RelayHealth<S> {
    async fn look(&self) -> ComponentHealth {
        let stats = &self.stats;
        let health = ComponentHealth::up("relay", "outbox")
            .detail("running", !self.finished.is_cancelled())
            .detail("published", stats.published())
            .detail("failed", stats.failed())
            .detail("retired", stats.retired())
            .detail("lag_ms", millis(stats.lag()));
        let health = match stats.last_error() {
            Some(error) => health.detail("last_error", error),
            None => health,
        };
        if self.finished.is_cancelled() {
            return health.down("the relay was closed");
        }
        if let Some(trouble) = stats.trouble() {
            return health.degraded(trouble);
        }
        match self.store.oldest_pending_age().await {
            Ok(oldest) => health.detail("oldest_pending_ms", oldest.map(millis)),
            Err(error) => health.degraded(with_causes(&error)),
        }
    }
}
