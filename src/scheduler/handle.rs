//! What an application holds.

use std::{fmt, future::IntoFuture, sync::Arc, time::Duration};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{FutureExt, future::BoxFuture};
use serde::Serialize;

use super::{
    control::Control,
    ladder::{Ladder, Rungs},
    parcel::{Label, due, wrapped},
    stats::{Counters, SchedulerStats},
};
use crate::{
    clock::millis,
    connection::{AceMq, Shutdown},
    consume::{Consumer, RetryPolicy},
    error::{Error, Result},
    message::{BytesCodec, Encoder, Envelope, JsonCodec},
    publish::compose,
    topology::{check_address, check_length},
};

/// The furthest time that a message may be scheduled for: a hundred years. What is further is
/// taken for a mistake in the caller's arithmetic.
const FURTHEST: Duration = Duration::from_hours(24 * 36_525);

impl AceMq {
    /// Starts a scheduler: declares its ladder, and takes part in delivering what is due.
    ///
    /// Await the builder, with options before that where they are wanted. One scheduler per
    /// application is enough; those of several processes share the work.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use acemq::{AceMq, Message, Queue, Topology};
    ///
    /// # fn main() -> Result<(), acemq::BoxError> {
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?.block_on(async {
    /// let mq = AceMq::connect("memory://").await?;
    /// mq.declare(&Topology::new().queue(Queue::new("baskets.abandoned"))).await?;
    /// let scheduler = mq.scheduler().await?;
    /// scheduler.after(Duration::from_secs(3600), "", "baskets.abandoned", &42).await?;
    ///
    /// let (seen, mut abandoned) = tokio::sync::mpsc::unbounded_channel();
    /// let _consumer = mq
    ///     .consumer::<u32>("baskets.abandoned")
    ///     .start(move |basket: Message<u32>| {
    ///         let seen = seen.clone();
    ///         async move { Ok(seen.send(basket.into_payload())?) }
    ///     })
    ///     .await?;
    /// assert_eq!(abandoned.recv().await, Some(42)); // an hour later
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn scheduler(&self) -> SchedulerBuilder {
        SchedulerBuilder {
            mq: self.clone(),
            ladder: Ladder::default(),
            prefix: None,
            concurrency: 64,
            delivers: true,
        }
    }
}

/// Options of a scheduler; see [`AceMq::scheduler`]. Awaiting it starts the scheduler.
#[must_use = "a scheduler does nothing until it is awaited"]
pub struct SchedulerBuilder {
    mq: AceMq,
    ladder: Ladder,
    prefix: Option<String>,
    concurrency: usize,
    delivers: bool,
}

impl SchedulerBuilder {
    /// Sets which queues hold the messages. Default: [`Ladder::Family`].
    ///
    /// Changing it strands nothing as long as a scheduler of the old ladder runs until that is
    /// empty.
    pub fn ladder(mut self, ladder: Ladder) -> Self {
        self.ladder = ladder;
        self
    }

    /// Sets the name that the exchanges and queues begin with, to keep installations on one broker
    /// apart. Default: `acemq.schedule` for the family's ladder, `acemq.delay` for the binary one.
    pub fn prefix(mut self, name: impl Into<String>) -> Self {
        self.prefix = Some(name.into());
        self
    }

    /// Sets how many messages are sent on at a time. From 1. Default: 64.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages;
        self
    }

    /// Only schedules: delivering is left to schedulers in other processes. Default: it delivers.
    ///
    /// While none delivers, messages wait: with the family's ladder after each hop.
    pub fn without_delivery(mut self) -> Self {
        self.delivers = false;
        self
    }

    async fn start(self) -> Result<Scheduler> {
        let rungs = Rungs::new(self.ladder, self.prefix)?;
        let core = Arc::clone(self.mq.core());
        core.declare(&rungs.topology()).await?;
        let counters = Arc::<Counters>::default();
        let control = || Control {
            core: Arc::clone(&core),
            rungs: rungs.clone(),
            counters: counters.clone(),
        };
        let consumer = if self.delivers {
            let prefetch = u16::try_from(self.concurrency.saturating_mul(2)).unwrap_or(u16::MAX);
            let consumer = self
                .mq
                .consumer_with::<Bytes>(rungs.control_queue(), BytesCodec)
                .prefetch(prefetch)
                .concurrency(self.concurrency)
                .retry(RetryPolicy::none());
            let delivering = control();
            Some(consumer.start_processing(move |_| Box::new(delivering)).await?)
        } else {
            None
        };
        let shared = Shared { control: control(), consumer };
        Ok(Scheduler { shared: Arc::new(shared) })
    }
}

impl IntoFuture for SchedulerBuilder {
    type Output = Result<Scheduler>;
    type IntoFuture = BoxFuture<'static, Result<Scheduler>>;

    /// Starts the scheduler.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for a prefix or concurrency that cannot work.
    /// - [`Error::TopologyMismatch`] if a queue of the ladder exists with other arguments.
    /// - [`Error::Disconnected`], [`Error::Interrupted`] and [`Error::Closed`] as for
    ///   [`AceMq::declare`].
    fn into_future(self) -> Self::IntoFuture {
        self.start().boxed()
    }
}

impl fmt::Debug for SchedulerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerBuilder")
            .field("ladder", &self.ladder)
            .field("prefix", &self.prefix)
            .field("concurrency", &self.concurrency)
            .field("delivers", &self.delivers)
            .finish_non_exhaustive()
    }
}

/// Schedules messages, and delivers what is due; see [`AceMq::scheduler`].
///
/// `Clone`, cheap. Delivery goes on as long as one clone lives and the handle is open; what is
/// scheduled stays in the broker and is delivered by any scheduler of the same ladder.
///
/// Guarantee: at least once, from the moment that a call has returned `Ok`. A message may come
/// twice, with the same id, if a scheduler dies between its publish and its acknowledgement. Order
/// is not promised, not even for equal times.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
}

struct Shared {
    control: Control,
    consumer: Option<Consumer>,
}

/// Scheduling.
impl Scheduler {
    /// Publishes a payload after a delay, as JSON with a fresh envelope, and returns its id.
    ///
    /// `Ok` means that the broker holds the message, or, for a delay that is over at once, that its
    /// target has it. Dropping the future leaves open whether it is scheduled.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for a delay of more than a hundred years, and for an exchange or
    ///   routing key that cannot work. Nothing is scheduled.
    /// - For a message that is due at once, and for the ladder, what
    ///   [`Publisher::send`](crate::Publisher::send) returns. Whether the target exists is not
    ///   known before the message is due: one without is dead-lettered then, to `{prefix}.due.dlq`.
    pub async fn after<T: Serialize>(
        &self,
        delay: Duration,
        exchange: &str,
        routing_key: &str,
        payload: &T,
    ) -> Result<String> {
        self.after_with(delay, exchange, routing_key, payload, Envelope::new()).await
    }

    /// Publishes a payload after a delay, with an envelope of the caller's.
    ///
    /// Id, type, correlation and headers are those of the envelope when the message arrives.
    ///
    /// # Errors
    ///
    /// As [`after`](Self::after); also [`Error::InvalidOption`] for a reserved header.
    pub async fn after_with<T: Serialize>(
        &self,
        delay: Duration,
        exchange: &str,
        routing_key: &str,
        payload: &T,
        envelope: Envelope,
    ) -> Result<String> {
        let due_ms = self.due_after(delay)?;
        self.schedule_json(due_ms, exchange, routing_key, payload, envelope).await
    }

    /// Publishes a payload at a time, as JSON with a fresh envelope, and returns its id. A time
    /// that has passed is now.
    ///
    /// # Errors
    ///
    /// As [`after`](Self::after).
    pub async fn at<T: Serialize>(
        &self,
        due: DateTime<Utc>,
        exchange: &str,
        routing_key: &str,
        payload: &T,
    ) -> Result<String> {
        self.at_with(due, exchange, routing_key, payload, Envelope::new()).await
    }

    /// Publishes a payload at a time, with an envelope of the caller's.
    ///
    /// # Errors
    ///
    /// As [`after_with`](Self::after_with).
    pub async fn at_with<T: Serialize>(
        &self,
        due: DateTime<Utc>,
        exchange: &str,
        routing_key: &str,
        payload: &T,
        envelope: Envelope,
    ) -> Result<String> {
        let due_ms = self.due_at(due)?;
        self.schedule_json(due_ms, exchange, routing_key, payload, envelope).await
    }

    /// Publishes bytes of any content type at a time: for other codecs.
    ///
    /// # Errors
    ///
    /// As [`after_with`](Self::after_with).
    pub async fn at_raw(
        &self,
        due: DateTime<Utc>,
        exchange: &str,
        routing_key: &str,
        (content_type, body): (&str, Bytes),
        envelope: Envelope,
    ) -> Result<String> {
        let label = Label {
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            due_ms: self.due_at(due)?,
            content_type: content_type.to_owned(),
        };
        self.schedule(label, body, envelope).await
    }

    async fn schedule_json<T: Serialize>(
        &self,
        due_ms: i64,
        exchange: &str,
        routing_key: &str,
        payload: &T,
        envelope: Envelope,
    ) -> Result<String> {
        let content_type = <JsonCodec as Encoder<T>>::content_type(&JsonCodec).to_owned();
        let body = match JsonCodec.encode(payload) {
            Ok(body) => body,
            Err(source) => return Err(Error::Codec { action: "encode", content_type, source }),
        };
        let (exchange, routing_key) = (exchange.to_owned(), routing_key.to_owned());
        self.schedule(Label { exchange, routing_key, due_ms, content_type }, body, envelope).await
    }

    /// Publishes to the first rung, or to the target if the message is due.
    async fn schedule(&self, label: Label, body: Bytes, envelope: Envelope) -> Result<String> {
        check_address("exchange", &label.exchange)?;
        check_length("routing_key", &label.routing_key)?;
        check_length("content_type", &label.content_type)?;
        let control = &self.shared.control;
        let core = &control.core;
        core.check_size(body.len())?;
        let id = envelope.id().to_owned();
        let now_ms = core.clock().now_ms();
        let remaining = label.due_ms.saturating_sub(now_ms);
        // The type is the target's routing key where none was set, not the rung's; and a message
        // is first seen when it is due, so that no policy by age counts the wait.
        let envelope = envelope.completed(&label.routing_key, label.due_ms.max(now_ms), None);
        if let Some(hop) = control.rungs.next(remaining) {
            control.hop(compose(core, wrapped(&label, hop, envelope, body))?).await?;
        } else {
            core.publish_on_behalf(compose(core, due(label, envelope, body))?).await?;
            control.counters.delivered.add();
        }
        control.counters.scheduled.add();
        Ok(id)
    }

    fn due_after(&self, delay: Duration) -> Result<i64> {
        if delay > FURTHEST {
            return Err(Error::invalid("delay", format!("{delay:?}"), TOO_FAR));
        }
        let delay = i64::try_from(millis(delay)).unwrap_or(i64::MAX);
        Ok(self.now_ms().saturating_add(delay))
    }

    fn due_at(&self, due: DateTime<Utc>) -> Result<i64> {
        let furthest = i64::try_from(millis(FURTHEST)).unwrap_or(i64::MAX);
        let due_ms = due.timestamp_millis();
        if due_ms.saturating_sub(self.now_ms()) > furthest {
            return Err(Error::invalid("due", due, TOO_FAR));
        }
        Ok(due_ms)
    }

    fn now_ms(&self) -> i64 {
        self.shared.control.core.clock().now_ms()
    }
}

const TOO_FAR: &str = "is more than a hundred years away";

/// Looking after it.
impl Scheduler {
    /// Returns the counts since the start, of this process.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        self.shared.control.counters.snapshot()
    }

    /// Returns how often a message was published into a rung by this process.
    #[must_use]
    pub fn hops(&self) -> u64 {
        self.stats().hops
    }

    /// Returns the consumer of the control queue, for its state and to pause it; none for a
    /// scheduler that does not deliver.
    #[must_use]
    pub fn consumer(&self) -> Option<&Consumer> {
        self.shared.consumer.as_ref()
    }

    /// Returns the queue in which messages wait for a scheduler.
    #[must_use]
    pub fn control_queue(&self) -> String {
        self.shared.control.rungs.control_queue()
    }

    /// Stops delivering, in good order. Scheduled messages stay in the broker.
    ///
    /// Every clone is closed with it. Closing twice is harmless. Dropping the future leaves the
    /// rest to the background.
    pub async fn close(&self) -> Option<Shutdown> {
        match &self.shared.consumer {
            Some(consumer) => Some(consumer.close().await),
            None => None,
        }
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("control_queue", &self.control_queue())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
