//! A stop, as an application starts and holds it.

use std::{fmt, sync::Arc};

use futures::FutureExt;
use serde::de::DeserializeOwned;

use super::{
    answer::StopHandler,
    process::{Counters, Role, Stopping, UndoHandler},
    way::Limits,
};
use crate::{
    connection::{AceMq, Core, Shutdown},
    consume::{Consumer, ConsumerBuilder, Handler, RetryPolicy},
    error::{Error, Result},
    idempotency::IdempotencyStore,
    message::{Decoder, JsonCodec, Message},
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
    /// [`Forward::undo_at`](super::Forward::undo_at). After the handler's `Ok` the slip travels on to the stop that was done
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
