//! The options of a consumer, and its start.

use std::{fmt, sync::Arc};

use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Consumer, Handler, RetryPolicy,
    claim::{Claims, purge_until},
    consumer::{ConsumerState, Mode},
    counters::Counters,
    health::ConsumerHealth,
    places::{self, Places},
    process::{Idempotent, IdentityCheck, Process, Typed},
    subscription::Runner,
    worker::Worker,
};
use crate::{
    connection::{AceMq, Core, HealthSource, Shutdown},
    error::{Error, Result},
    idempotency::IdempotencyStore,
    message::{Decoder, Headers, JsonCodec},
    telemetry::ConsumerMetrics,
    topology::{check_name, standard},
    transport::Subscribe,
};

/// Options of a consumer; see [`AceMq::consumer`].
#[must_use = "a consumer does nothing until `start` is called"]
pub struct ConsumerBuilder<T> {
    core: Arc<Core>,
    queue: String,
    decoder: Arc<dyn Decoder<T>>,
    prefetch: u16,
    concurrency: usize,
    policy: RetryPolicy,
    exclusive: bool,
    priority: i32,
    store: Option<Arc<dyn IdempotencyStore>>,
    consumer_name: Option<String>,
    exception_headers: bool,
    takes_batches: bool,
}

impl AceMq {
    /// Starts the options of a consumer of JSON payloads.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, Message, Queue, Topology};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// mq.declare(&Topology::new().queue(Queue::new("greetings"))).await?;
    /// let (seen, mut greetings) = tokio::sync::mpsc::unbounded_channel();
    /// let consumer = mq
    ///     .consumer::<String>("greetings")
    ///     .start(move |message: Message<String>| {
    ///         let seen = seen.clone();
    ///         async move {
    ///             seen.send(message.into_payload())?;
    ///             Ok(())
    ///         }
    ///     })
    ///     .await?;
    ///
    /// mq.publisher::<String>("", "greetings").send(&"hello".to_owned()).await?;
    /// assert_eq!(greetings.recv().await.as_deref(), Some("hello"));
    /// consumer.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn consumer<T: DeserializeOwned>(&self, queue: impl Into<String>) -> ConsumerBuilder<T> {
        self.consumer_with(queue, JsonCodec)
    }

    /// Starts the options of a consumer with a decoder of its own.
    pub fn consumer_with<T>(
        &self,
        queue: impl Into<String>,
        decoder: impl Decoder<T>,
    ) -> ConsumerBuilder<T> {
        ConsumerBuilder {
            core: Arc::clone(self.core()),
            queue: queue.into(),
            decoder: Arc::new(decoder),
            prefetch: 50,
            concurrency: 1,
            policy: RetryPolicy::default(),
            exclusive: false,
            priority: 0,
            store: None,
            consumer_name: None,
            exception_headers: false,
            takes_batches: false,
        }
    }
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Sets how many messages the broker sends ahead. From 1; it must cover the concurrency.
    /// Default: 50.
    ///
    /// More hides the network's latency; less spreads work more evenly over consumers.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// Sets how many handlers run at a time. From 1. Default: 1, which keeps the queue's order
    /// as long as nothing fails.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers;
        self
    }

    /// Sets when a failed message is tried again. Default: 5 attempts, 1 s to 60 s apart.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Handles each message once as far as the store can tell: a message that was handled before is
    /// acknowledged without running the handler. Default: every delivery is handled.
    ///
    /// The message id is claimed before the handler runs, the claim is renewed while it runs, and
    /// confirmed before the acknowledgement; a failure releases it. A crash between the handler's
    /// effect and the confirm repeats the effect. Messages without an id are handled each time.
    pub fn idempotent(mut self, store: impl IdempotencyStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// As [`idempotent`](Self::idempotent), with a store that others use as well.
    pub(crate) fn idempotent_in(mut self, store: Arc<dyn IdempotencyStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the name under which messages are claimed, so that two consumers of one message do
    /// not disturb each other. Default: the queue's name.
    pub fn consumer_name(mut self, name: impl Into<String>) -> Self {
        self.consumer_name = Some(name.into());
        self
    }

    /// Makes set-aside messages readable for tools of other stacks, by four more headers.
    /// Default: none; the reason is in the envelope.
    ///
    /// - `x-exception-message`: the reason, the same text as in the envelope.
    /// - `x-exception-type`: `exhausted`, `too_old`, `rejected`, `panicked`, `parked` or
    ///   `undecodable`.
    /// - `x-original-exchange` and `x-original-routing-key`: where the message was published to
    ///   before it was retried. Retried messages carry these two as well.
    ///
    /// The texts are cut, and where the message's own headers leave too little room in a frame,
    /// none of the four is added. A replay leaves them on the message.
    pub fn exception_headers(mut self) -> Self {
        self.exception_headers = true;
        self
    }

    /// Lets no other consumer take from the queue; a second one fails to start. Default: shared.
    ///
    /// Classic queues only: a quorum queue ignores it (RabbitMQ's guide to quorum queues, feature
    /// comparison). There, declare the queue with
    /// [`single_active_consumer`](crate::Queue::single_active_consumer).
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Sets who gets a message first: a consumer of lower priority gets none while one of higher
    /// priority has room. Default: 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Declares the queues that failures go to, subscribes, and handles messages until closed.
    ///
    /// The queue itself must exist. Once started, the consumer survives every loss: it subscribes
    /// again, and declares the queue again if it was declared through this handle. Dropping the
    /// future before it completes starts nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for an option that cannot work, by its name.
    /// - [`Error::NotFound`] if the queue does not exist.
    /// - [`Error::TopologyMismatch`] if a set-aside queue exists with other arguments.
    /// - [`Error::BrokerRefused`] if another consumer has the queue for itself.
    /// - [`Error::Disconnected`] if there is no connection in time, [`Error::Interrupted`] if it is
    ///   lost again and again, [`Error::Closed`] after a close.
    pub async fn start(self, handler: impl Handler<T>) -> Result<Consumer> {
        let process = Box::new(Typed { decoder: Arc::clone(&self.decoder), handler });
        self.start_processing(|_| process).await
    }

    /// Starts with any kind of processing, which gets the token that ends it.
    pub(crate) async fn start_processing(
        self,
        process: impl FnOnce(&CancellationToken) -> Box<dyn Process>,
    ) -> Result<Consumer> {
        self.check()?;
        let consumer = self.name();
        let Self { core, queue, .. } = self;
        if core.closing().is_cancelled() {
            return Err(Error::Closed);
        }
        self.policy.warn_of_uneven_rungs(&queue);
        let stop = core.closing().child_token();
        let counters = Arc::<Counters>::default();
        let (mode, wanted) = watch::channel(Mode::Running);
        let (state, current) = watch::channel(ConsumerState::Running);
        let mut process = process(&stop);
        if let Some(store) = self.store {
            self.policy.warn_of_short_memory(&queue, store.retention());
            let (purged, stopped) = (Arc::clone(&store), stop.clone());
            core.tasks().spawn(async move {
                purge_until(stopped, |limit| purged.purge(limit)).await;
            });
            let claims = Claims { store, consumer };
            let (identity, stop) = (IdentityCheck::default(), stop.clone());
            process = Box::new(Idempotent { inner: process, claims, stop, identity });
        }
        let places = Arc::new(Places::new(self.concurrency, self.prefetch, self.takes_batches));
        let runner = Runner {
            topology: standard::set_aside_queues(&queue).merge(self.policy.topology(&queue)),
            request: Subscribe {
                queue: queue.clone(),
                tag: format!("{}-{}", core.options().client_name, Uuid::new_v4()),
                prefetch: self.prefetch,
                exclusive: self.exclusive,
                arguments: arguments(self.priority),
            },
            worker: Arc::new(Worker {
                core: Arc::clone(&core),
                queue: queue.clone(),
                policy: self.policy,
                process,
                counters: Arc::clone(&counters),
                metrics: ConsumerMetrics::new(&queue),
                exception_headers: self.exception_headers,
                stop: stop.clone(),
            }),
            places: Arc::clone(&places),
            mode: wanted,
            state,
            stop: stop.clone(),
        };
        // A start that fails or is dropped ends what it began.
        let guard = stop.clone().drop_guard();
        let first = runner.subscribe().await?;
        let stop = guard.disarm();
        let (end, ended) = watch::channel(None);
        core.tasks().spawn(async move {
            let abandoned = runner.run(first).await;
            end.send_replace(Some(Shutdown { abandoned }));
        });
        let health = ConsumerHealth {
            queue: queue.clone(),
            counters: Arc::clone(&counters),
            state: current.clone(),
        };
        let health: Arc<dyn HealthSource> = Arc::new(health);
        core.watched().add(&health);
        Ok(Consumer {
            queue,
            counters,
            places,
            mode,
            state: current,
            ended,
            _health: health,
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        })
    }

    /// The name under which messages are claimed.
    pub(crate) fn name(&self) -> String {
        self.consumer_name.clone().unwrap_or_else(|| self.queue.clone())
    }

    /// Refuses options that cannot work, before anything is declared.
    pub(crate) fn check(&self) -> Result<()> {
        check_name("queue", &self.queue)?;
        if let Some(name) = &self.consumer_name {
            check_name("consumer_name", name)?;
        }
        if self.prefetch == 0 {
            return Err(Error::invalid("prefetch", 0, "would be no limit at all; use 1 or more"));
        }
        places::check(self.concurrency, usize::from(self.prefetch))?;
        self.policy.validate()
    }
}

/// What a consumer of another kind takes over.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
impl<T> ConsumerBuilder<T> {
    pub(crate) fn decoder(&self) -> Arc<dyn Decoder<T>> {
        Arc::clone(&self.decoder)
    }

    pub(crate) fn handlers(&self) -> usize {
        self.concurrency
    }

    pub(crate) fn has_store(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn warn_of_short_memory(&self, retention: Option<std::time::Duration>) {
        self.policy.warn_of_short_memory(&self.queue, retention);
    }

    pub(crate) fn tasks(&self) -> tokio_util::task::TaskTracker {
        self.core.tasks().clone()
    }

    /// Takes this many deliveries at once, whatever the concurrency and prefetch.
    pub(crate) fn at_once(self, deliveries: usize) -> Self {
        let prefetch = u16::try_from(deliveries).unwrap_or(u16::MAX).max(self.prefetch);
        let concurrency = deliveries.min(usize::from(prefetch));
        Self { concurrency, prefetch, takes_batches: true, ..self }
    }
}

impl<T> fmt::Debug for ConsumerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .field("concurrency", &self.concurrency)
            .field("retry", &self.policy)
            .finish_non_exhaustive()
    }
}

/// What the broker is told beside the queue's name. The usual priority is not mentioned.
fn arguments(priority: i32) -> Headers {
    let priority = (priority != 0).then_some(("x-priority", priority));
    priority.into_iter().collect()
}
