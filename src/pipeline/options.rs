//! How a step is consumed.

use std::{fmt, sync::Arc};

use crate::{
    consume::{ConsumerBuilder, RetryPolicy},
    idempotency::IdempotencyStore,
};

/// Options of one step, which come before those of the whole pipeline; see
/// [`PipelineBuilder::for_step`](super::PipelineBuilder::for_step).
#[derive(Clone, Default)]
#[must_use = "options do nothing until they are passed to a pipeline"]
pub struct StepOptions {
    retry: Option<RetryPolicy>,
    concurrency: Option<usize>,
    prefetch: Option<u16>,
    store: Option<Arc<dyn IdempotencyStore>>,
    pub(super) description: Option<String>,
}

impl StepOptions {
    /// Creates options without any choice.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets when a failed message is tried again, at this step. Default: the pipeline's, else 5
    /// attempts, 1 s to 60 s apart.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Sets how many handlers run at a time, in this process. From 1. Default: the pipeline's, else
    /// 1.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = Some(handlers);
        self
    }

    /// Sets how many messages the broker sends ahead. Default: the pipeline's, else 50.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = Some(messages);
        self
    }

    /// Handles each message of the step once, as far as the store can tell. Default: the
    /// pipeline's, else every delivery is handled.
    ///
    /// The claim's name is the step's queue, so that one store serves many steps.
    pub fn idempotent(mut self, store: impl IdempotencyStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets the type of the messages that the step sends on. Default: the type of the message that
    /// came in.
    pub fn described_as(mut self, message_type: impl Into<String>) -> Self {
        self.description = Some(message_type.into());
        self
    }

    /// What is chosen here, else what is chosen there.
    pub(super) fn over(self, general: &Self) -> Self {
        Self {
            retry: self.retry.or_else(|| general.retry.clone()),
            concurrency: self.concurrency.or(general.concurrency),
            prefetch: self.prefetch.or(general.prefetch),
            store: self.store.or_else(|| general.store.clone()),
            description: self.description.or_else(|| general.description.clone()),
        }
    }

    pub(super) fn apply<T: Send + 'static>(
        self,
        mut consumer: ConsumerBuilder<T>,
    ) -> ConsumerBuilder<T> {
        if let Some(policy) = self.retry {
            consumer = consumer.retry(policy);
        }
        if let Some(handlers) = self.concurrency {
            consumer = consumer.concurrency(handlers);
        }
        if let Some(messages) = self.prefetch {
            consumer = consumer.prefetch(messages);
        }
        match self.store {
            Some(store) => consumer.idempotent_in(store),
            None => consumer,
        }
    }
}

impl fmt::Debug for StepOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepOptions")
            .field("retry", &self.retry)
            .field("concurrency", &self.concurrency)
            .field("prefetch", &self.prefetch)
            .field("idempotent", &self.store.is_some())
            .field("described_as", &self.description)
            .finish()
    }
}
