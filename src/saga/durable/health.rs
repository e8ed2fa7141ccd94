//! How a durable saga is.

use futures::{FutureExt, future::BoxFuture};
use serde::{Serialize, de::DeserializeOwned};

use super::{journal::SagaJournal, service::DurableSaga};
use crate::{
    connection::{ComponentHealth, HealthSource},
    error::with_causes,
};

/// Degraded while a run is unresolved, which waits for a human, and while the journal cannot be
/// read. Watch it with [`AceMq::watch_health`](crate::AceMq::watch_health).
impl<T, J> HealthSource for DurableSaga<T, J>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    J: SagaJournal,
{
    fn health(&self) -> BoxFuture<'_, ComponentHealth> {
        let look = async {
            let health = ComponentHealth::up("saga", self.name());
            match self.unresolved_count().await {
                Ok(0) => health.detail("unresolved", 0),
                Ok(runs) => health
                    .detail("unresolved", runs)
                    .degraded(format!("{runs} runs could not be undone and wait for somebody")),
                Err(error) => health.degraded(with_causes(&error)),
            }
        };
        look.boxed()
    }
}
