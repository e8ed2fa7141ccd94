//! The options of an ordered queue.

use std::{fmt, sync::Arc};

use futures::FutureExt;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use super::{
    failure::OnFailure,
    handle::{Counters, OrderedQueue, PartitionHandle, PartitionState, Sending},
    layout::{self, OrderedLayout},
    partition::{KeyOf, Partition, Shared},
    partitioning::Partitioning,
};
use crate::{
    connection::AceMq,
    consume::Handler,
    error::{Error, Result},
    message::{Codec, Decoder, Encoder, JsonCodec, Message},
    telemetry::ConsumerMetrics,
    topology::{Topology, check_name, standard},
};

/// Options of an ordered queue; see [`AceMq::ordered`].
#[must_use = "an ordered queue does nothing until it is declared or consumed"]
pub struct OrderedBuilder<T> {
    mq: AceMq,
    name: String,
    encoder: Arc<dyn Encoder<T>>,
    decoder: Arc<dyn Decoder<T>>,
    key_of: Option<Arc<KeyOf<T>>>,
    partitions: u32,
    partitioning: Partitioning,
    layout: OrderedLayout,
    on_failure: OnFailure,
    prefetch: Option<u16>,
    lanes: usize,
}

impl AceMq {
    /// Starts the options of a queue that keeps the order of each key, with JSON payloads.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, Message};
    ///
    /// #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// struct AccountEvent { account: String, cents: i64 }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// let (applied, mut amounts) = tokio::sync::mpsc::unbounded_channel();
    /// let accounts = mq
    ///     .ordered::<AccountEvent>("account.events")
    ///     .partitions(16)
    ///     .keyed_by(|event: &AccountEvent| event.account.clone())
    ///     .consume(move |event: Message<AccountEvent>| {
    ///         let applied = applied.clone();
    ///         async move { Ok(applied.send(event.payload().cents)?) }
    ///     })
    ///     .await?;
    /// for cents in [100, -30, -20] {
    ///     accounts.send(&AccountEvent { account: "a-7".into(), cents }).await?;
    /// }
    /// for cents in [100, -30, -20] {
    ///     assert_eq!(amounts.recv().await, Some(cents));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn ordered<T>(&self, name: impl Into<String>) -> OrderedBuilder<T>
    where
        T: Serialize + DeserializeOwned + 'static,
    {
        self.ordered_with(name, JsonCodec)
    }

    /// Starts the options of an ordered queue with a codec of its own.
    pub fn ordered_with<T: 'static>(
        &self,
        name: impl Into<String>,
        codec: impl Codec<T>,
    ) -> OrderedBuilder<T> {
        let codec = Arc::new(codec);
        OrderedBuilder {
            mq: self.clone(),
            name: name.into(),
            encoder: Arc::clone(&codec) as _,
            decoder: codec,
            key_of: None,
            partitions: 8,
            partitioning: Partitioning::default(),
            layout: OrderedLayout::default(),
            on_failure: OnFailure::default(),
            prefetch: None,
            lanes: 1,
        }
    }
}

impl<T: 'static> OrderedBuilder<T> {
    /// Sets the number of partitions, a power of two unless a rule is named by
    /// [`partitioning`](Self::partitioning). Default: 8.
    ///
    /// It is part of the queue: the broker remembers it, and another number is refused. Choose
    /// more than the concurrency that you will need.
    pub fn partitions(mut self, number: u32) -> Self {
        self.partitions = number;
        self
    }

    /// Sets the rule from key to partition. Default: [`Partitioning::PowerOfTwo`].
    pub fn partitioning(mut self, rule: Partitioning) -> Self {
        self.partitioning = rule;
        self
    }

    /// Sets the key within which order is kept. Required.
    ///
    /// It must be a function of the payload alone, and the same in every process. A payload with an
    /// empty key is refused when it is sent.
    pub fn keyed_by(mut self, key: impl Fn(&T) -> String + Send + Sync + 'static) -> Self {
        self.key_of = Some(Arc::new(key));
        self
    }

    /// Sets how the queues are declared. Default: [`OrderedLayout::SingleActive`].
    pub fn layout(mut self, layout: OrderedLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets what happens when the handler fails. Default: [`OnFailure::Stop`].
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// Sets how many messages the broker sends ahead to each partition. From 1; it must cover the
    /// lanes. Default: 1, or four for each lane.
    ///
    /// More hides the network's latency. What was sent ahead is never handled after a failure.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = Some(messages);
        self
    }

    /// Sets how many different keys of a partition are handled side by side, so that a slow one
    /// does not hold the others. From 1. Default: 1, each partition strictly in its order.
    pub fn concurrency_per_partition(mut self, keys: usize) -> Self {
        self.lanes = keys;
        self
    }

    /// Declares the queue for sending, without consuming it.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for an option that cannot work, by its name, and for another
    ///   number of partitions than the queue has.
    /// - [`Error::TopologyMismatch`] if a queue exists with other arguments, for instance because a
    ///   service in another language declared it: see [`OrderedLayout::Family`].
    /// - What [`AceMq::declare`] returns.
    pub async fn declare(self) -> Result<OrderedQueue<T>> {
        let sending = self.declared().await?;
        Ok(OrderedQueue::new(sending, Vec::new(), None))
    }

    /// Declares the queue and consumes all its partitions.
    ///
    /// Of several processes one at a time consumes each partition.
    ///
    /// # Errors
    ///
    /// As [`declare`](Self::declare), and what
    /// [`ConsumerBuilder::start`](crate::ConsumerBuilder::start) returns.
    pub async fn consume(self, handler: impl Handler<T>) -> Result<OrderedQueue<T>>
    where
        T: Clone + Send + Sync,
    {
        let lanes = self.lanes;
        let prefetch = self.checked_prefetch()?;
        self.on_failure.check()?;
        let (on_failure, decoder) = (self.on_failure, Arc::clone(&self.decoder));
        let sending = self.declared().await?;
        let core = Arc::clone(&sending.core);
        let stop = core.closing().child_token();
        let handler = Arc::new(handler);
        let shared = Arc::new(Shared {
            core: Arc::clone(&core),
            decoder,
            key_of: Arc::clone(&sending.key_of),
            handle: Box::new(move |message: Message<T>| {
                let handler = Arc::clone(&handler);
                async move { handler.handle(message).await }.boxed()
            }),
            on_failure,
            prefetch,
            lanes,
            stop: stop.clone(),
        });
        // A start that fails or is dropped ends what it began.
        let guard = stop.clone().drop_guard();
        let mut opened = Vec::new();
        for index in 0..sending.partitions {
            let topology = layout::partition(&sending.name, index, sending.layout);
            let queue = layout::queue_name(&sending.name, index);
            opened.push(start(&shared, queue, topology).await?);
        }
        guard.disarm();
        Ok(OrderedQueue::new(sending, opened, Some(stop)))
    }

    fn checked_prefetch(&self) -> Result<u16> {
        if self.lanes == 0 {
            let reason = "would handle nothing; use 1 or more";
            return Err(Error::invalid("concurrency_per_partition", 0, reason));
        }
        let least = if self.lanes == 1 { 1 } else { self.lanes.saturating_mul(4) };
        let prefetch = self.prefetch.unwrap_or_else(|| u16::try_from(least).unwrap_or(u16::MAX));
        if prefetch == 0 {
            return Err(Error::invalid("prefetch", 0, "would be no limit at all; use 1 or more"));
        }
        if usize::from(prefetch) < self.lanes {
            let reason = format!("is below the {} lanes of a partition", self.lanes);
            return Err(Error::invalid("prefetch", prefetch, reason));
        }
        Ok(prefetch)
    }

    async fn declared(self) -> Result<Sending<T>> {
        let Self { mq, name, encoder, key_of, partitions, partitioning, layout, .. } = self;
        let longest = layout::queue_name(&name, partitions);
        check_name("ordered", &name)?;
        check_name("ordered", &standard::parked_name(&longest))?;
        partitioning.check(partitions)?;
        let Some(key_of) = key_of else {
            return Err(Error::invalid(
                "keyed_by",
                &name,
                "is required: there is no order without a key",
            ));
        };
        let core = Arc::clone(mq.core());
        if layout == OrderedLayout::SingleActive {
            core.declare(&layout::count(&name, partitions)).await.map_err(|error| match error {
                Error::TopologyMismatch { .. } => {
                    let reason = format!("differs from what the queue has: {error}");
                    Error::invalid("partitions", partitions, reason)
                }
                other => other,
            })?;
        }
        core.declare(&layout::partitions(&name, partitions, layout)).await?;
        Ok(Sending { core, name, encoder, key_of, partitions, partitioning, layout })
    }
}

async fn start<T: Clone + Send + Sync + 'static>(
    shared: &Arc<Shared<T>>,
    queue: String,
    topology: Topology,
) -> Result<PartitionHandle> {
    let counters = Arc::<Counters>::default();
    let (state, current) = watch::channel(PartitionState::Running);
    let (resume, resumed) = watch::channel(0);
    let partition = Partition {
        shared: Arc::clone(shared),
        metrics: ConsumerMetrics::new(&queue),
        counters: Arc::clone(&counters),
        queue: queue.clone(),
        topology,
        state,
        resumed,
    };
    let first = partition.subscribe().await?;
    let (end, ended) = watch::channel(None);
    shared.core.tasks().spawn(async move {
        let abandoned = partition.run(first).await;
        end.send_replace(Some(abandoned));
    });
    Ok(PartitionHandle { queue, counters, state: current, resume, ended })
}

impl<T> fmt::Debug for OrderedBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedBuilder")
            .field("name", &self.name)
            .field("partitions", &self.partitions)
            .field("layout", &self.layout)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}
