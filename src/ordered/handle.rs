//! What an application holds of an ordered queue.

use std::{fmt, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    health::OrderedHealth,
    layout::{self, OrderedLayout},
    partition::KeyOf,
    partitioning::Partitioning,
};
use crate::{
    connection::{Core, HealthSource, Shutdown},
    consume::Counter,
    error::{Error, Result},
    message::{Encoder, Envelope, Properties},
    publish::{Draft, compose},
};

/// What a partition does at the moment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub enum PartitionState {
    /// It is subscribed. Another process may be the active one.
    Running,
    /// It cannot consume at the moment, and tries on.
    Waiting {
        /// Why.
        reason: String,
    },
    /// Its handler failed: the message is first in its queue, and nothing is handled until
    /// [`OrderedQueue::resume`].
    Halted {
        /// The message and its failure.
        reason: String,
    },
    /// It was closed.
    Closed,
}

/// Counts of a partition since the queue was opened, of this process.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PartitionStats {
    /// The partition, from 0.
    pub partition: u32,
    /// Its queue.
    pub queue: String,
    /// What it does at the moment.
    pub state: PartitionState,
    /// Messages handled.
    pub handled: u64,
    /// Attempts after the first, in place.
    pub retried: u64,
    /// Messages dead-lettered: each a gap in its key.
    pub skipped: u64,
    /// Messages parked, those that could not be decoded included.
    pub parked: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) handled: Counter,
    pub(super) retried: Counter,
    pub(super) skipped: Counter,
    pub(super) parked: Counter,
}

/// The sending half.
pub(super) struct Sending<T> {
    pub(super) core: Arc<Core>,
    pub(super) name: String,
    pub(super) encoder: Arc<dyn Encoder<T>>,
    pub(super) key_of: Arc<KeyOf<T>>,
    pub(super) partitions: u32,
    pub(super) partitioning: Partitioning,
    pub(super) layout: OrderedLayout,
}

/// One consumed partition.
pub(super) struct PartitionHandle {
    pub(super) queue: String,
    pub(super) counters: Arc<Counters>,
    pub(super) state: watch::Receiver<PartitionState>,
    pub(super) resume: watch::Sender<u64>,
    pub(super) ended: watch::Receiver<Option<usize>>,
}

/// An open ordered queue; see [`AceMq::ordered`](crate::AceMq::ordered).
///
/// `Clone`, cheap. Dropping the last clone stops consuming in the background.
pub struct OrderedQueue<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    sending: Sending<T>,
    partitions: Vec<PartitionHandle>,
    /// Told with the handle's health as long as a clone is held.
    _health: Option<Arc<dyn HealthSource>>,
    stop: Option<CancellationToken>,
    _stop_on_drop: Option<DropGuard>,
}

impl<T> OrderedQueue<T> {
    pub(super) fn new(
        sending: Sending<T>,
        partitions: Vec<PartitionHandle>,
        stop: Option<CancellationToken>,
    ) -> Self {
        let guard = stop.clone().map(CancellationToken::drop_guard);
        let health = (!partitions.is_empty()).then(|| {
            let health = OrderedHealth::of(&sending.name, &partitions);
            let health: Arc<dyn HealthSource> = Arc::new(health);
            sending.core.watched().add(&health);
            health
        });
        let shared = Shared { sending, partitions, _health: health, stop, _stop_on_drop: guard };
        Self { shared: Arc::new(shared) }
    }
}

/// Sending.
impl<T: 'static> OrderedQueue<T> {
    /// Publishes a payload to the partition of its key, confirmed and mandatory, and returns the
    /// partition.
    ///
    /// Messages of a key are in order if each is sent after the one before it was confirmed. Two
    /// sends of a key at the same time have no order, and one whose future was dropped, or that
    /// failed with an error that leaves it open, may be there.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for an empty key; else as
    /// [`Publisher::send`](crate::Publisher::send).
    pub async fn send(&self, payload: &T) -> Result<u32> {
        self.send_with(payload, Envelope::new()).await
    }

    /// Publishes a payload with an envelope of the caller's.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); also [`Error::InvalidOption`] for a reserved header.
    pub async fn send_with(&self, payload: &T, envelope: Envelope) -> Result<u32> {
        let sending = &self.shared.sending;
        let key = (sending.key_of)(payload);
        if key.is_empty() {
            return Err(Error::invalid("key", "", "is empty: there is no order without a key"));
        }
        let partition = sending.partitioning.partition_for(&key, sending.partitions)?;
        let content_type = sending.encoder.content_type().to_owned();
        let body = match sending.encoder.encode(payload) {
            Ok(body) => body,
            Err(source) => return Err(Error::Codec { action: "encode", content_type, source }),
        };
        let named = envelope.message_type().is_empty();
        let envelope = if named { envelope.message_type_named(&sending.name) } else { envelope };
        let content_type = Some(content_type);
        let draft = Draft {
            exchange: sending.name.clone(),
            routing_key: layout::routing_key(partition),
            mandatory: true,
            envelope,
            properties: Properties { content_type, persistent: true, ..Properties::default() },
            body,
        };
        sending.core.publish_on_behalf(compose(&sending.core, draft)?).await?;
        Ok(partition)
    }

    /// Publishes payloads one after another and returns their partitions; stops at the first
    /// failure, so that none overtakes it.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); those before the failure are published.
    pub async fn send_all<'a>(
        &self,
        payloads: impl IntoIterator<Item = &'a T>,
    ) -> Result<Vec<u32>> {
        let mut partitions = Vec::new();
        for payload in payloads {
            partitions.push(self.send(payload).await?);
        }
        Ok(partitions)
    }
}

/// Looking after it.
impl<T> OrderedQueue<T> {
    /// Returns the number of partitions.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.shared.sending.partitions
    }

    /// Returns the queue of a key's partition.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the rule does not cover the number of partitions.
    pub fn queue_for(&self, key: &str) -> Result<String> {
        let Sending { name, partitioning, partitions, .. } = &self.shared.sending;
        Ok(layout::queue_name(name, partitioning.partition_for(key, *partitions)?))
    }

    /// Returns the address of a key's partition, exchange and routing key: for an outbox record
    /// whose ordering key is this key.
    ///
    /// # Errors
    ///
    /// As [`queue_for`](Self::queue_for).
    pub fn address_of(&self, key: &str) -> Result<(String, String)> {
        let Sending { name, partitioning, partitions, .. } = &self.shared.sending;
        let partition = partitioning.partition_for(key, *partitions)?;
        Ok((name.clone(), layout::routing_key(partition)))
    }

    /// Returns the partitions that are halted here: a stuck key in each, which nothing else tells.
    #[must_use]
    pub fn halted_partitions(&self) -> Vec<u32> {
        let stats = self.stats().into_iter();
        let halted = stats.filter(|of| matches!(of.state, PartitionState::Halted { .. }));
        halted.map(|of| of.partition).collect()
    }

    /// Goes on with a halted partition, from the message that halted it. False if the partition is
    /// not halted here.
    ///
    /// Mend the cause first: a message that fails again halts it again.
    #[must_use = "whether the partition was halted"]
    pub fn resume(&self, partition: u32) -> bool {
        let index = usize::try_from(partition).unwrap_or(usize::MAX);
        let Some(handle) = self.shared.partitions.get(index) else { return false };
        let halted = matches!(*handle.state.borrow(), PartitionState::Halted { .. });
        if halted {
            handle.resume.send_modify(|times| *times += 1);
        }
        halted
    }

    /// Returns the counts of each partition; none where the queue is not consumed here.
    #[must_use]
    pub fn stats(&self) -> Vec<PartitionStats> {
        let numbered = (0_u32..).zip(&self.shared.partitions);
        numbered
            .map(|(partition, handle)| PartitionStats {
                partition,
                queue: handle.queue.clone(),
                state: handle.state.borrow().clone(),
                handled: handle.counters.handled.get(),
                retried: handle.counters.retried.get(),
                skipped: handle.counters.skipped.get(),
                parked: handle.counters.parked.get(),
            })
            .collect()
    }

    /// Stops consuming in good order: running handlers finish and acknowledge, everything else goes
    /// back in its order.
    ///
    /// Every clone is closed with it. Closing twice is harmless. Dropping the future leaves the
    /// rest to the background.
    pub async fn close(&self) -> Shutdown {
        if let Some(stop) = &self.shared.stop {
            stop.cancel();
        }
        let mut abandoned = 0;
        for handle in &self.shared.partitions {
            let mut ended = handle.ended.clone();
            let report = ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended);
            abandoned += report.unwrap_or(0);
        }
        Shutdown { abandoned }
    }
}

impl<T> Clone for OrderedQueue<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> fmt::Debug for OrderedQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedQueue")
            .field("name", &self.shared.sending.name)
            .field("partitions", &self.partitions())
            .field("halted", &self.halted_partitions())
            .finish_non_exhaustive()
    }
}
