//! Answering: the options of a responder, its start, and its handle.

use std::{fmt, sync::Arc, time::Duration};

use futures::FutureExt;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    answering::{Answering, Handle},
    responder_error::ResponderError,
    stats::{ResponderCounters, ResponderStats},
};
use crate::{
    connection::{AceMq, Shutdown},
    consume::{Consumer, ConsumerBuilder, ConsumerState, RetryPolicy},
    error::Result,
    idempotency::IdempotencyStore,
    message::{Decoder, Encoder, JsonCodec, Message},
};

/// Options of a responder; see [`AceMq::responder`].
#[must_use = "a responder does nothing until `start` is called"]
pub struct ResponderBuilder<Q, A> {
    mq: AceMq,
    consumer: ConsumerBuilder<Q>,
    decoder: Arc<dyn Decoder<Q>>,
    encoder: Arc<dyn Encoder<A>>,
    reply_type: Option<String>,
    clock_tolerance: Duration,
}

impl AceMq {
    /// Answers the requests of a queue with the default options.
    ///
    /// The handler gets the decoded request and returns the answer, or an error: a
    /// [`ResponderError`] with a name for the caller, or any other error by `?`.
    ///
    /// # Errors
    ///
    /// As [`ConsumerBuilder::start`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use acemq::{AceMq, Queue, RequestError, ResponderError, Topology};
    ///
    /// async fn price_of(sku: String) -> Result<u64, ResponderError> {
    ///     match sku.as_str() {
    ///         "sku 42" => Ok(1995),
    ///         _ => Err(ResponderError::new("PriceNotFound", format!("no price for {sku}"))),
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mq = AceMq::connect("memory://").await?;
    /// mq.declare(&Topology::new().queue(Queue::new("prices.requests"))).await?;
    /// let responder = mq.respond("prices.requests", price_of).await?;
    ///
    /// let requester = mq.requester().await?;
    /// let asked = requester.request::<_, u64>("", "prices.requests", &"sku 7", Duration::from_secs(2));
    /// match asked.await {
    ///     Err(RequestError::ResponderFailed { error_type, .. }) => assert_eq!(error_type, "PriceNotFound"),
    ///     other => panic!("{other:?}"),
    /// }
    /// # requester.close().await;
    /// # responder.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn respond<Q, A, E, F, Fut>(
        &self,
        queue: impl Into<String>,
        handler: F,
    ) -> Result<Responder>
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + Send + 'static,
        E: Into<ResponderError>,
        F: Fn(Q) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<A, E>> + Send + 'static,
    {
        self.responder(queue).start(handler).await
    }

    /// Starts the options of a responder of JSON requests and answers.
    pub fn responder<Q, A>(&self, queue: impl Into<String>) -> ResponderBuilder<Q, A>
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + Send + 'static,
    {
        self.responder_with(queue, JsonCodec)
    }

    /// Starts the options of a responder with a codec of its own, for both directions.
    pub fn responder_with<Q, A, C>(
        &self,
        queue: impl Into<String>,
        codec: C,
    ) -> ResponderBuilder<Q, A>
    where
        Q: Send + 'static,
        A: Send + 'static,
        C: Decoder<Q> + Encoder<A>,
    {
        let codec = Arc::new(codec);
        let decoder: Arc<dyn Decoder<Q>> = Arc::clone(&codec) as _;
        ResponderBuilder {
            mq: self.clone(),
            consumer: self.consumer_with(queue, Arc::clone(&decoder)).concurrency(16),
            decoder,
            encoder: codec,
            reply_type: None,
            clock_tolerance: Duration::ZERO,
        }
    }
}

impl<Q: Send + 'static, A: Send + 'static> ResponderBuilder<Q, A> {
    /// Sets how many requests the broker sends ahead. From 1; it must cover the concurrency.
    /// Default: 50.
    ///
    /// Requests that were sent ahead wait here while others of the same queue could be free; a
    /// slow handler wants few.
    pub fn prefetch(mut self, requests: u16) -> Self {
        self.consumer = self.consumer.prefetch(requests);
        self
    }

    /// Sets how many handlers run at a time. From 1. Default: 16.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.consumer = self.consumer.concurrency(handlers);
        self
    }

    /// Sets when a request is tried again whose reply could not be published. A failure of the
    /// handler is never tried again. Default: 5 attempts, 1 s to 60 s apart.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.consumer = self.consumer.retry(policy);
        self
    }

    /// Handles each request once as far as the store can tell; one that comes again after its
    /// reply was sent is acknowledged without another. Default: every delivery is handled.
    pub fn idempotent(mut self, store: impl IdempotencyStore) -> Self {
        self.consumer = self.consumer.idempotent(store);
        self
    }

    /// Sets the type of the replies. Default: the request's type with `.reply` after it.
    pub fn reply_type(mut self, name: impl Into<String>) -> Self {
        self.reply_type = Some(name.into());
        self
    }

    /// Works on requests for this long after their time, for machines whose clocks differ.
    /// Default: none; a request whose TTL is over is dropped.
    ///
    /// The time is the request's first-seen time and TTL, by the caller's clock. A responder
    /// whose clock is ahead by more than the callers' timeouts would drop everything.
    pub fn clock_tolerance(mut self, difference: Duration) -> Self {
        self.clock_tolerance = difference;
        self
    }

    /// Starts with a handler of decoded requests.
    ///
    /// # Errors
    ///
    /// As [`ConsumerBuilder::start`].
    pub async fn start<E, F, Fut>(self, handler: F) -> Result<Responder>
    where
        E: Into<ResponderError>,
        F: Fn(Q) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<A, E>> + Send + 'static,
    {
        self.start_with_message(move |message| handler(message.into_payload())).await
    }

    /// Starts with a handler of whole messages, for what the envelope and headers say, and
    /// whether the request was delivered before.
    ///
    /// # Errors
    ///
    /// As [`ConsumerBuilder::start`].
    pub async fn start_with_message<E, F, Fut>(self, handler: F) -> Result<Responder>
    where
        E: Into<ResponderError>,
        F: Fn(Message<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<A, E>> + Send + 'static,
    {
        let handle: Handle<Q, A> = Box::new(move |message| {
            handler(message).map(|answer| answer.map_err(Into::into)).boxed()
        });
        let counters = Arc::<ResponderCounters>::default();
        let answering = Answering {
            core: Arc::clone(self.mq.core()),
            decoder: self.decoder,
            encoder: self.encoder,
            handle,
            reply_type: self.reply_type,
            clock_tolerance: self.clock_tolerance,
            counters: Arc::clone(&counters),
        };
        let consumer = self.consumer.start_processing(|_| Box::new(answering)).await?;
        Ok(Responder { consumer, counters })
    }
}

impl<Q, A> fmt::Debug for ResponderBuilder<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponderBuilder")
            .field("consumer", &self.consumer)
            .field("reply_type", &self.reply_type)
            .field("clock_tolerance", &self.clock_tolerance)
            .finish_non_exhaustive()
    }
}

/// A running responder; see [`AceMq::respond`].
///
/// Dropping it stops it in the background, as [`close`](Self::close) does in the foreground.
#[derive(Debug)]
#[must_use = "dropping a responder stops it"]
pub struct Responder {
    consumer: Consumer,
    counters: Arc<ResponderCounters>,
}

impl Responder {
    /// Returns the counts since the start.
    #[must_use]
    pub fn stats(&self) -> ResponderStats {
        self.counters.snapshot()
    }

    /// Returns the consumer of the requests, for its counts, to pause and to resume it.
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Returns what the responder does at the moment.
    #[must_use]
    pub fn state(&self) -> ConsumerState {
        self.consumer.state()
    }

    /// Stops in good order: takes no more requests, gives back those not started, and waits for
    /// running handlers and their replies at most
    /// [`shutdown_timeout`](crate::ConnectOptions::shutdown_timeout).
    pub async fn close(&self) -> Shutdown {
        self.consumer.close().await
    }
}
