//! The options of a transactional consumer, and its start.

use std::{fmt, marker::PhantomData};

use super::{Inbox, batch::Batched, single::Transactional, work::WorkHandler};
use crate::{
    consume::{Consumer, ConsumerBuilder, IdentityCheck, Process, purge_until},
    error::{Error, Result},
};

/// Options of a consumer whose handler works in a transaction; see
/// [`ConsumerBuilder::transactional`].
#[must_use = "a consumer does nothing until `start` is called"]
pub struct TransactionalConsumer<T, I> {
    consumer: ConsumerBuilder<T>,
    inbox: I,
    batch: usize,
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Handles each message in a transaction that also notes it as handled, so that its effects in
    /// the database are there exactly once.
    ///
    /// Every other option is set before this one. The consumer needs no idempotency store beside.
    pub fn transactional<I: Inbox>(self, inbox: I) -> TransactionalConsumer<T, I> {
        TransactionalConsumer { consumer: self, inbox, batch: 1 }
    }
}

impl<T: Send + 'static, I: Inbox> TransactionalConsumer<T, I> {
    /// Lets up to this many messages share a transaction. From 1. Default: 1.
    ///
    /// A batch takes what waits, it never waits for more. Each message of it is worked on behind
    /// a savepoint, one after the other; the consumer's concurrency is the number of batches at a
    /// time. The order of the queue is not kept.
    pub fn batched(mut self, messages: usize) -> Self {
        self.batch = messages;
        self
    }

    /// Starts the consumer; see [`ConsumerBuilder::start`].
    ///
    /// # Errors
    ///
    /// As [`ConsumerBuilder::start`]. The database is not asked before the first message.
    pub async fn start(self, handler: impl WorkHandler<T, I::Database>) -> Result<Consumer> {
        let Self { consumer, inbox, batch } = self;
        if batch == 0 {
            return Err(Error::invalid("batched", 0, "would handle nothing; use 1 or more"));
        }
        if consumer.has_store() {
            let reason = "is of no use beside `transactional`, which notes handled messages itself";
            return Err(Error::invalid("idempotent", "a store", reason));
        }
        consumer.warn_of_short_memory(inbox.retention());
        let (lanes, name, decoder) = (consumer.handlers(), consumer.name(), consumer.decoder());
        // Two batches' worth of deliveries: one is worked on, the next one gathers.
        let consumer =
            if batch > 1 { consumer.at_once(batch.saturating_mul(2 * lanes)) } else { consumer };
        let tasks = consumer.tasks();
        consumer
            .start_processing(|stop| {
                let (purged, stopped) = (inbox.clone(), stop.clone());
                tasks.spawn(async move {
                    purge_until(stopped, |limit| Box::pin(purged.purge(limit))).await;
                });
                let work = Transactional {
                    inbox,
                    consumer: name,
                    decoder,
                    handler,
                    stop: stop.clone(),
                    identity: IdentityCheck::default(),
                    payload: PhantomData,
                };
                if batch > 1 {
                    Box::new(Batched::start(work, batch, lanes)) as Box<dyn Process>
                } else {
                    Box::new(work)
                }
            })
            .await
    }
}

impl<T, I> fmt::Debug for TransactionalConsumer<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionalConsumer")
            .field("consumer", &self.consumer)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}
