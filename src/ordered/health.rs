//! How an ordered queue is.

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;

use super::handle::{PartitionHandle, PartitionState};
use crate::connection::{ComponentHealth, HealthSource};

/// What the health of a consumed queue is read from.
pub(super) struct OrderedHealth {
    name: String,
    states: Vec<watch::Receiver<PartitionState>>,
}

impl OrderedHealth {
    pub(super) fn of(name: &str, partitions: &[PartitionHandle]) -> Self {
        let states = partitions.iter().map(|partition| partition.state.clone()).collect();
        Self { name: name.to_owned(), states }
    }

    fn look(&self) -> ComponentHealth {
        let (mut halted, mut waiting, mut closed) = (Vec::new(), Vec::new(), 0);
        let mut reason = None;
        for (partition, state) in (0_u32..).zip(&self.states) {
            match &*state.borrow() {
                PartitionState::Running => {}
                PartitionState::Closed => closed += 1,
                PartitionState::Halted { reason: why } => {
                    reason = Some(format!("partition {partition} is halted: {why}"));
                    halted.push(partition);
                }
                PartitionState::Waiting { reason: why } => {
                    reason.get_or_insert(format!("partition {partition} is not subscribed: {why}"));
                    waiting.push(partition);
                }
            }
        }
        let health = ComponentHealth::up("ordered", self.name.as_str())
            .detail("partitions", self.states.len())
            .detail("halted", halted)
            .detail("waiting", waiting);
        match reason {
            _ if closed == self.states.len() => health.down("closed"),
            Some(reason) => health.degraded(reason),
            None => health,
        }
    }
}

impl HealthSource for OrderedHealth {
    fn health(&self) -> BoxFuture<'_, ComponentHealth> {
        std::future::ready(self.look()).boxed()
    }
}
