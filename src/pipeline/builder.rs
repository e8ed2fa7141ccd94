//! Building a pipeline: each step takes what the one before returns.

use std::{fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    handle::{Counters, Pipeline, Shared},
    options::StepOptions,
    plan::{Plan, check},
    step::{Handle, StepProcess},
};
use crate::{
    connection::AceMq,
    consume::{Consumer, HandlerError, RetryPolicy},
    error::{Error, Result},
    idempotency::IdempotencyStore,
    message::{BytesCodec, Codec, Decoder, Encoder, JsonCodec, Message},
    topology::{check_address, check_length},
};

/// What a step needs to start.
struct Start {
    mq: AceMq,
    plan: Arc<Plan>,
    counters: Arc<Counters>,
    index: usize,
    options: StepOptions,
}

struct StepDefinition {
    name: String,
    start: Box<dyn FnOnce(Start) -> BoxFuture<'static, Result<Consumer>> + Send>,
}

/// The definition of a pipeline in the making; see [`AceMq::pipeline`].
///
/// `In` is what enters, `Out` what the last step so far returns. The order of options and steps
/// does not matter, except for [`codec`](Self::codec).
#[must_use = "a pipeline does nothing until it is built"]
pub struct PipelineBuilder<In, Out, C = JsonCodec> {
    mq: AceMq,
    name: String,
    codec: C,
    entry: Arc<dyn Encoder<In>>,
    /// Of the messages that the next step gets.
    decoder: Arc<dyn Decoder<Out>>,
    steps: Vec<StepDefinition>,
    general: StepOptions,
    own: Vec<(String, StepOptions)>,
    only: Option<Vec<String>>,
    results: Option<(String, String)>,
}

impl AceMq {
    /// Starts the definition of a pipeline whose messages are JSON.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, HandlerError, Message};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// let (done, mut totals) = tokio::sync::mpsc::unbounded_channel();
    /// let orders = mq
    ///     .pipeline::<u32>("orders")
    ///     .step("validate", |quantity: Message<u32>| async move {
    ///         Ok(Some(*quantity.payload()).filter(|quantity| *quantity > 0)) // `None` ends the run
    ///     })
    ///     .step("price", |quantity: Message<u32>| async move {
    ///         Ok(Some(f64::from(*quantity.payload()) * 9.95))
    ///     })
    ///     .step("bill", move |total: Message<f64>| {
    ///         let done = done.clone();
    ///         async move {
    ///             done.send(*total.payload()).map_err(HandlerError::retry)?;
    ///             Ok(None::<()>)
    ///         }
    ///     })
    ///     .build()
    ///     .await?;
    /// orders.send(&0).await?;
    /// orders.send(&2).await?;
    /// assert_eq!(totals.recv().await, Some(19.9));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pipeline<In>(&self, name: impl Into<String>) -> PipelineBuilder<In, In>
    where
        In: Serialize + DeserializeOwned + 'static,
    {
        self.pipeline_with(name, JsonCodec)
    }

    /// Starts the definition of a pipeline with a codec of its own.
    pub fn pipeline_with<In: 'static, C: Codec<In> + Clone>(
        &self,
        name: impl Into<String>,
        codec: C,
    ) -> PipelineBuilder<In, In, C> {
        PipelineBuilder {
            mq: self.clone(),
            name: name.into(),
            entry: Arc::new(codec.clone()),
            decoder: Arc::new(codec.clone()),
            codec,
            steps: Vec::new(),
            general: StepOptions::new(),
            own: Vec::new(),
            only: None,
            results: None,
        }
    }
}

/// Steps.
impl<In, Out, C> PipelineBuilder<In, Out, C> {
    /// Adds a step: an async function of the whole message.
    ///
    /// `Ok(Some(next))` goes on to the next step, `Ok(None)` ends the run here, which is no failure.
    /// An error is handled as a consumer's: `?` tries again by the policy, at this step, and then
    /// dead-letters; see [`crate::consume`] for the other answers. The last step completes the run
    /// whatever it returns.
    pub fn step<Next, F, Fut>(
        mut self,
        name: impl Into<String>,
        handler: F,
    ) -> PipelineBuilder<In, Next, C>
    where
        Out: Send + 'static,
        Next: Send + 'static,
        C: Codec<Next> + Clone,
        F: Fn(Message<Out>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<Option<Next>, HandlerError>> + Send + 'static,
    {
        let handle: Handle<Out, Next> = Box::new(move |message| handler(message).boxed());
        let (decoder, encoder) = (self.decoder, Arc::new(self.codec.clone()));
        let start = move |start: Start| start_step(start, decoder, encoder, handle).boxed();
        self.steps.push(StepDefinition { name: name.into(), start: Box::new(start) });
        PipelineBuilder {
            decoder: Arc::new(self.codec.clone()),
            mq: self.mq,
            name: self.name,
            codec: self.codec,
            entry: self.entry,
            steps: self.steps,
            general: self.general,
            own: self.own,
            only: self.only,
            results: self.results,
        }
    }

    /// Sets the codec of what the steps after this call send on. Default: the pipeline's.
    pub fn codec<Other>(self, codec: Other) -> PipelineBuilder<In, Out, Other> {
        PipelineBuilder {
            codec,
            mq: self.mq,
            name: self.name,
            entry: self.entry,
            decoder: self.decoder,
            steps: self.steps,
            general: self.general,
            own: self.own,
            only: self.only,
            results: self.results,
        }
    }
}

async fn start_step<I: Send + 'static, O: Send + 'static>(
    start: Start,
    decoder: Arc<dyn Decoder<I>>,
    encoder: Arc<dyn Encoder<O>>,
    handle: Handle<I, O>,
) -> Result<Consumer> {
    let Start { mq, plan, counters, index, options } = start;
    let process = StepProcess {
        core: Arc::clone(mq.core()),
        counters,
        index,
        description: options.description.clone(),
        decoder: Arc::clone(&decoder),
        encoder,
        handle,
        plan: Arc::clone(&plan),
    };
    let consumer = mq.consumer_with(plan.queue(&plan.steps[index]), decoder);
    options.apply(consumer).start_processing(|_| Box::new(process)).await
}

/// Options.
impl<In, Out, C> PipelineBuilder<In, Out, C> {
    /// Sets when a failed message is tried again, for every step. Default: 5 attempts, 1 s to 60 s
    /// apart. A retry happens at the step that failed, not from the start.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.general = self.general.retry(policy);
        self
    }

    /// Sets how many handlers of each step run at a time, in this process. From 1. Default: 1.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.general = self.general.concurrency(handlers);
        self
    }

    /// Sets how many messages the broker sends ahead to each step. Default: 50.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.general = self.general.prefetch(messages);
        self
    }

    /// Handles each message of each step once, as far as the store can tell. Default: every
    /// delivery is handled.
    ///
    /// A hop has the same id however often it is published, so that a repeated one is recognised
    /// by the step that it goes to.
    pub fn idempotent(mut self, store: impl IdempotencyStore) -> Self {
        self.general = self.general.idempotent(store);
        self
    }

    /// Sets the type of the messages that every step sends on. Default: the type of the message
    /// that entered.
    pub fn described_as(mut self, message_type: impl Into<String>) -> Self {
        self.general = self.general.described_as(message_type);
        self
    }

    /// Sets the options of one step, which come before those of the pipeline.
    pub fn for_step(mut self, step: impl Into<String>, options: StepOptions) -> Self {
        self.own.push((step.into(), options));
        self
    }

    /// Runs only these steps in this process; the others run elsewhere, under the same definition.
    /// Default: all. An empty list runs none: such a process only sends.
    pub fn only<S: Into<String>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        self.only = Some(steps.into_iter().map(Into::into).collect());
        self
    }

    /// Publishes what the last step returns, confirmed and mandatory. Default: it goes nowhere.
    pub fn results_to(
        mut self,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        self.results = Some((exchange.into(), routing_key.into()));
        self
    }

    /// Declares the exchange and the queues of all steps, and starts those that run here.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for a pipeline without steps, a name that cannot work or that two
    ///   steps share, an option that cannot work, and a name in [`for_step`](Self::for_step) or
    ///   [`only`](Self::only) that is no step. Nothing is declared.
    /// - What [`AceMq::declare`] and [`ConsumerBuilder::start`](crate::ConsumerBuilder::start)
    ///   return. Steps that had started are stopped.
    pub async fn build(self) -> Result<Pipeline<In>> {
        let steps: Vec<String> = self.steps.iter().map(|step| step.name.clone()).collect();
        let plan = Plan { name: self.name, steps, results: self.results };
        check(&plan)?;
        if let Some((exchange, routing_key)) = &plan.results {
            check_address("results_to", exchange)?;
            check_length("results_to", routing_key)?;
        }
        let named = self.own.iter().map(|(step, _)| ("for_step", step));
        for (option, step) in named.chain(self.only.iter().flatten().map(|step| ("only", step))) {
            if !plan.steps.contains(step) {
                return Err(Error::invalid(option, step, "is no step of this pipeline"));
            }
        }
        let plan = Arc::new(plan);
        let options = chosen_options(self.own, &self.general, &plan.steps);
        for (step, options) in plan.steps.iter().zip(&options) {
            let consumer = self.mq.consumer_with(plan.queue(step), BytesCodec);
            options.clone().apply(consumer).check()?;
        }
        self.mq.core().declare(&plan.topology()).await?;
        let counters = Arc::<Counters>::default();
        let mut consumers = Vec::new();
        for (index, (step, options)) in self.steps.into_iter().zip(options).enumerate() {
            if self.only.as_ref().is_some_and(|only| !only.contains(&step.name)) {
                continue;
            }
            let (mq, plan, counters) = (self.mq.clone(), Arc::clone(&plan), Arc::clone(&counters));
            let start = Start { mq, plan, counters, index, options };
            consumers.push((step.name, (step.start)(start).await?));
        }
        let core = Arc::clone(self.mq.core());
        let shared = Shared { core, plan, entry: self.entry, counters, consumers };
        Ok(Pipeline { shared: Arc::new(shared) })
    }
}

/// The options of each step: its own, then those of the pipeline.
fn chosen_options(
    mut own: Vec<(String, StepOptions)>,
    general: &StepOptions,
    steps: &[String],
) -> Vec<StepOptions> {
    let chosen = |step: &String| {
        let of_step = own.iter_mut().filter(|(name, _)| name == step);
        // A later call comes before an earlier one, as with every other option.
        let options = of_step.fold(StepOptions::new(), |earlier, (_, options)| {
            std::mem::take(options).over(&earlier)
        });
        options.over(general)
    };
    steps.iter().map(chosen).collect()
}

impl<In, Out, C> fmt::Debug for PipelineBuilder<In, Out, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<&str> = self.steps.iter().map(|step| step.name.as_str()).collect();
        f.debug_struct("PipelineBuilder")
            .field("name", &self.name)
            .field("steps", &steps)
            .field("only", &self.only)
            .finish_non_exhaustive()
    }
}
