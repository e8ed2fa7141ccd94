//! A stop: runs the handler, stamps the slip and sends the message on, or back.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use serde::de::DeserializeOwned;

use super::{
    answer::{Forward, StopHandler},
    way::{Limits, Way, back, way},
};
use crate::{
    connection::{AceMq, Core, Shutdown},
    consume::{
        Consumer, ConsumerBuilder, Counter, Handler, Handling, Outcome, Process, RetryPolicy,
        catching_panics, decode, gives_up, send_on,
    },
    error::{Error, Result},
    idempotency::IdempotencyStore,
    message::{Decoder, Envelope, JsonCodec, Message, Properties, Received},
    publish::{Draft, compose},
};

/// A route of more stops is taken for one that goes round in circles.
const HOPS: usize = 100;

/// The room that a slip may take in the headers, of 128 KiB for all of them at most.
const SIZE: usize = 48 * 1024;

impl AceMq {
    /// Makes a queue a stop of routing slips, with JSON payloads and the default options.
    ///
    /// # Errors
    ///
    /// As [`SlipStopBuilder::start`].
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, Envelope, Forward, HandlerError, Itinerary, Message, Queue, Topology};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// mq.declare(&Topology::new().queue(Queue::new("underwriting")).queue(Queue::new("billing"))).await?;
    /// let (sender, mut billed) = tokio::sync::mpsc::unbounded_channel();
    /// let _underwriting = mq
    ///     .stop("underwriting", |policy: Message<u32>| async move {
    ///         Ok(Forward::json(&(policy.payload() + 1)).map_err(HandlerError::reject)?)
    ///     })
    ///     .await?;
    /// let _billing = mq
    ///     .stop("billing", move |policy: Message<u32>| {
    ///         let sender = sender.clone();
    ///         async move {
    ///             sender.send(*policy.payload()).map_err(HandlerError::retry)?;
    ///             Ok(Forward::unchanged())
    ///         }
    ///     })
    ///     .await?;
    ///
    /// let route = Itinerary::new().then("", "underwriting").then("", "billing");
    /// let envelope = Envelope::of("policy.submitted").header(Itinerary::HEADER, route.to_header());
    /// mq.publisher::<u32>("", "underwriting").send_with(&41, envelope).await?;
    /// assert_eq!(billed.recv().await, Some(42));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stop<T>(
        &self,
        queue: impl Into<String>,
        handler: impl StopHandler<T>,
    ) -> Result<SlipStop>
    where
        T: DeserializeOwned + Send + 'static,
    {
        self.slip_stop(queue).start(handler).await
    }

    /// Starts the options of a stop with JSON payloads.
    pub fn slip_stop<T: DeserializeOwned + Send + 'static>(
        &self,
        queue: impl Into<String>,
    ) -> SlipStopBuilder<T> {
        self.slip_stop_with(queue, JsonCodec)
    }

    /// Starts the options of a stop with a decoder of its own.
    pub fn slip_stop_with<T: Send + 'static>(
        &self,
        queue: impl Into<String>,
        decoder: impl Decoder<T>,
    ) -> SlipStopBuilder<T> {
        let decoder: Arc<dyn Decoder<T>> = Arc::new(decoder);
        SlipStopBuilder {
            core: Arc::clone(self.core()),
            consumer: self.consumer_with(queue, Arc::clone(&decoder)),
            decoder,
            policy: RetryPolicy::default(),
            limits: Limits { hops: HOPS, size: SIZE },
        }
    }
}

/// Options of a stop; see [`AceMq::stop`] and [`AceMq::slip_stop`].
#[must_use = "a stop does nothing until it is started"]
pub struct SlipStopBuilder<T> {
    core: Arc<Core>,
    consumer: ConsumerBuilder<T>,
    decoder: Arc<dyn Decoder<T>>,
    policy: RetryPolicy,
    limits: Limits,
}

impl<T: Send + 'static> SlipStopBuilder<T> {
    /// Sets when a failed message is tried again, at this stop. Default: 5 attempts, 1 s to 60 s
    /// apart.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets how many handlers run at a time. From 1. Default: 1.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.consumer = self.consumer.concurrency(handlers);
        self
    }

    /// Sets how many messages the broker sends ahead. From 1. Default: 50.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.consumer = self.consumer.prefetch(messages);
        self
    }

    /// Handles each message once as far as the store can tell. Default: every delivery is handled.
    ///
    /// A hop has the same id however often it is published, so that a repeated one is recognised.
    pub fn idempotent(mut self, store: impl IdempotencyStore) -> Self {
        self.consumer = self.consumer.idempotent(store);
        self
    }

    /// Sets how many stops a route may have behind it: a message over it is dead-lettered, so that
    /// a route in circles ends. From 1. Default: 100.
    pub fn hop_limit(mut self, stops: usize) -> Self {
        self.limits.hops = stops;
        self
    }

    /// Sets how many bytes a slip may take as a header, with what undoes it. Default: 48 KiB, since
    /// all headers share one frame of 128 KiB.
    pub fn size_limit(mut self, bytes: usize) -> Self {
        self.limits.size = bytes;
        self
    }

    /// Starts the stop. The queue must exist.
    ///
    /// # Errors
    ///
    /// As [`ConsumerBuilder::start`]; also [`Error::InvalidOption`] for a limit of zero.
    pub async fn start(self, handler: impl StopHandler<T>) -> Result<SlipStop> {
        self.start_as(Role::Stop(Box::new(handler))).await
    }

    /// Starts the place that undoes what a stop has done: the address that the stop has named with
    /// [`Forward::undo_at`]. After the handler's `Ok` the slip travels on to the stop that was done
    /// before.
    ///
    /// The handler gets the payload as the failing stop got it, what the stop has left behind in
    /// [`undo_data`](SlipStop::undo_data), and may get a message twice.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_undo(self, handler: impl Handler<T>) -> Result<SlipStop> {
        let handler = Arc::new(handler);
        let undo: UndoHandler<T> = Box::new(move |message| {
            let handler = Arc::clone(&handler);
            async move { handler.handle(message).await }.boxed()
        });
        self.start_as(Role::Undo(undo)).await
    }

    async fn start_as(self, role: Role<T>) -> Result<SlipStop> {
        let Self { core, consumer, decoder, policy, limits } = self;
        for (option, limit) in [("hop_limit", limits.hops), ("size_limit", limits.size)] {
            if limit == 0 {
                return Err(Error::invalid(option, 0, "lets no message through"));
            }
        }
        let counters = Arc::<Counters>::default();
        let stop = Stopping {
            core,
            decoder,
            role,
            policy: policy.clone(),
            limits,
            counters: Arc::clone(&counters),
        };
        let consumer = consumer.retry(policy).start_processing(|_| Box::new(stop)).await?;
        Ok(SlipStop { consumer, counters })
    }
}

impl<T> fmt::Debug for SlipStopBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlipStopBuilder")
            .field("consumer", &self.consumer)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Counts since a stop was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SlipStopStats {
    /// Messages sent on to the next stop.
    pub forwarded: u64,
    /// Messages whose route ended here.
    pub completed: u64,
    /// Messages given up here whose slip was sent back to undo what was done.
    pub sent_back: u64,
}

#[derive(Debug, Default)]
struct Counters {
    forwarded: Counter,
    completed: Counter,
    sent_back: Counter,
}

/// A running stop; see [`AceMq::stop`].
///
/// Dropping it stops it in the background, as [`close`](Self::close) does in the foreground.
#[derive(Debug)]
#[must_use = "dropping a stop stops it"]
pub struct SlipStop {
    consumer: Consumer,
    counters: Arc<Counters>,
}

impl SlipStop {
    /// Returns the counts since the start.
    #[must_use]
    pub fn stats(&self) -> SlipStopStats {
        SlipStopStats {
            forwarded: self.counters.forwarded.get(),
            completed: self.counters.completed.get(),
            sent_back: self.counters.sent_back.get(),
        }
    }

    /// Returns the consumer of the queue, for its counts, to pause and to resume it.
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Returns what the stop that is undone has left behind, on a message that undoes.
    #[must_use]
    pub fn undo_data<T>(message: &Message<T>) -> Option<&str> {
        message.headers().get(super::way::DATA).and_then(crate::message::HeaderValue::as_str)
    }

    /// Stops in good order; see [`Consumer::close`].
    pub async fn close(&self) -> Shutdown {
        self.consumer.close().await
    }
}

type UndoHandler<T> =
    Box<dyn Fn(Message<T>) -> BoxFuture<'static, crate::consume::HandlerResult> + Send + Sync>;

enum Role<T> {
    Stop(Box<dyn StopHandler<T>>),
    Undo(UndoHandler<T>),
}

struct Stopping<T> {
    core: Arc<Core>,
    decoder: Arc<dyn Decoder<T>>,
    role: Role<T>,
    policy: RetryPolicy,
    limits: Limits,
    counters: Arc<Counters>,
}

impl<T: Send + 'static> Process for Stopping<T> {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        async move {
            let outcome = match &self.role {
                Role::Stop(handler) => {
                    let outcome = self.at_stop(&**handler, &received).await;
                    self.unless_given_up(outcome, &received).await
                }
                Role::Undo(undo) => self.at_undo(undo, &received).await,
            };
            Handling::Done(outcome)
        }
        .boxed()
    }
}

impl<T: Send + 'static> Stopping<T> {
    async fn at_stop(&self, handler: &dyn StopHandler<T>, received: &Arc<Received>) -> Outcome {
        let mut forward = None;
        let outcome = catching_panics(async {
            let payload = match decode(&*self.decoder, received) {
                Ok(payload) => payload,
                Err(undecodable) => return undecodable,
            };
            match handler.handle(Message::new(payload, Arc::clone(received))).await {
                Ok(answer) => {
                    forward = Some(answer);
                    Outcome::Ack
                }
                Err(error) => error.into_outcome(),
            }
        })
        .await;
        match forward {
            Some(forward) => self.forward(forward, received).await,
            None => outcome,
        }
    }

    async fn forward(&self, mut forward: Forward, received: &Arc<Received>) -> Outcome {
        let payload = forward.payload.take();
        let now = self.core.clock().now();
        // The handler's own code runs in it once more, to revise the route.
        let mut decided = None;
        let outcome = catching_panics(async {
            decided = Some(way(&received.envelope, forward, now, self.limits));
            Outcome::Ack
        })
        .await;
        match decided {
            None => outcome,
            Some(Err(reason)) => Outcome::Reject(reason),
            Some(Ok(Way::Complete)) => {
                self.counters.completed.add();
                Outcome::Ack
            }
            Some(Ok(Way::On { exchange, routing_key, envelope })) => {
                let (content_type, body) = match payload {
                    Some((content_type, body)) => (Some(content_type), body),
                    None => (received.properties.content_type.clone(), received.body.clone()),
                };
                let draft = onward(exchange, routing_key, *envelope, content_type, body);
                let sent = send_on(&self.core, compose(&self.core, draft)).await;
                if sent == Outcome::Ack {
                    self.counters.forwarded.add();
                }
                sent
            }
        }
    }

    /// Sends the slip back if the message is about to be dead-lettered, before it is.
    async fn unless_given_up(&self, outcome: Outcome, received: &Received) -> Outcome {
        let age = received.envelope.first_seen_ms().map(|since| {
            let age = self.core.clock().now_ms().saturating_sub(since);
            Duration::from_millis(u64::try_from(age).unwrap_or(0))
        });
        let attempt = received.envelope.attempt();
        let Some(reason) = gives_up(&outcome, attempt, age, &self.policy) else { return outcome };
        match self.send_back(received, &reason).await {
            Ok(false) => outcome,
            Ok(true) => {
                self.counters.sent_back.add();
                outcome
            }
            // The message waits, and its slip is sent back the next time.
            Err(again) => again,
        }
    }

    /// Publishes to the last place that undoes something; false if there is none.
    async fn send_back(
        &self,
        received: &Received,
        reason: &str,
    ) -> std::result::Result<bool, Outcome> {
        let (undo, envelope) = match back(&received.envelope, reason) {
            Ok(Some(back)) => back,
            Ok(None) => return Ok(false),
            Err(reason) => {
                let id = received.envelope.id();
                tracing::error!(id, reason, "what was done along a slip cannot be undone");
                return Ok(false);
            }
        };
        let (content_type, body) =
            (received.properties.content_type.clone(), received.body.clone());
        let draft = onward(undo.exchange, undo.routing_key, envelope, content_type, body);
        match compose(&self.core, draft) {
            Ok(message) => match self.core.publish_on_behalf(message).await {
                Ok(()) => Ok(true),
                Err(error) if error.concerns_the_message() => {
                    let id = received.envelope.id();
                    tracing::error!(id, %error, "what was done along a slip cannot be undone");
                    Ok(false)
                }
                Err(error) => Err(send_on(&self.core, Err(error)).await),
            },
            Err(error) => {
                tracing::error!(%error, "what was done along a slip cannot be undone");
                Ok(false)
            }
        }
    }

    async fn at_undo(&self, undo: &UndoHandler<T>, received: &Arc<Received>) -> Outcome {
        let outcome = catching_panics(async {
            let payload = match decode(&*self.decoder, received) {
                Ok(payload) => payload,
                Err(undecodable) => return undecodable,
            };
            match undo(Message::new(payload, Arc::clone(received))).await {
                Ok(()) => Outcome::Ack,
                Err(error) => error.into_outcome(),
            }
        })
        .await;
        if outcome != Outcome::Ack {
            return outcome;
        }
        let reason = received.envelope.headers().get(super::way::REASON);
        let reason = reason.and_then(crate::message::HeaderValue::as_str).unwrap_or_default();
        match self.send_back(received, reason).await {
            Ok(true) => self.counters.sent_back.add(),
            Ok(false) => self.counters.completed.add(),
            Err(again) => return again,
        }
        Outcome::Ack
    }
}

fn onward(
    exchange: String,
    routing_key: String,
    envelope: Envelope,
    content_type: Option<String>,
    body: Bytes,
) -> Draft {
    let properties = Properties { content_type, persistent: true, ..Properties::default() };
    Draft { exchange, routing_key, mandatory: true, envelope, properties, body }
}
