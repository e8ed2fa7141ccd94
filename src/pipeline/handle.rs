//! What an application holds of a pipeline.

use std::{fmt, sync::Arc};

use serde::Serialize;

use super::plan::{Plan, Way};
use crate::{
    connection::{Core, Shutdown},
    consume::{Consumer, Counter, HandlerError, NextHop},
    error::{Error, Result},
    message::{Encoder, Envelope, Itinerary, JsonCodec, Properties},
    publish::{Draft, compose},
};

/// Counts since a pipeline was built, of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PipelineStats {
    /// Runs that were started here.
    pub entered: u64,
    /// Runs whose last step ended here.
    pub completed: u64,
    /// Runs that a step ended here by returning nothing, before the last.
    pub ended_early: u64,
    /// Messages that the steps here have dead-lettered or parked.
    pub failed: u64,
    /// Handlers that run here now.
    pub in_flight: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) entered: Counter,
    pub(super) completed: Counter,
    pub(super) ended_early: Counter,
}

/// A running pipeline; see [`AceMq::pipeline`](crate::AceMq::pipeline).
///
/// `Clone`, cheap. Dropping the last clone stops its steps in the background.
pub struct Pipeline<In> {
    pub(super) shared: Arc<Shared<In>>,
}

pub(super) struct Shared<In> {
    pub(super) core: Arc<Core>,
    pub(super) plan: Arc<Plan>,
    pub(super) entry: Arc<dyn Encoder<In>>,
    pub(super) counters: Arc<Counters>,
    pub(super) consumers: Vec<(String, Consumer)>,
}

/// Entering.
impl<In: 'static> Pipeline<In> {
    /// Starts a run and returns its id, once the queue of the first step has the message.
    ///
    /// Dropping the future leaves open whether the run is started.
    ///
    /// # Errors
    ///
    /// As [`Publisher::send`](crate::Publisher::send).
    pub async fn send(&self, payload: &In) -> Result<String> {
        self.send_with(payload, Envelope::new()).await
    }

    /// Starts a run with an envelope of the caller's, whose correlation and headers every message
    /// of the run keeps, and returns the run's id.
    ///
    /// # Errors
    ///
    /// As [`Publisher::send`](crate::Publisher::send); also [`Error::InvalidOption`] for a reserved
    /// header.
    pub async fn send_with(&self, payload: &In, envelope: Envelope) -> Result<String> {
        let plan = &self.shared.plan;
        // A pipeline has a first step: building one without is refused.
        let (Some(slip), Some(first)) = (plan.slip(), plan.steps.first()) else {
            return Err(Error::invalid("pipeline", &plan.name, "has no steps"));
        };
        let run = slip.run_id().to_owned();
        self.enter(&plan.name, first, payload, envelope.with_route(slip)).await?;
        Ok(run)
    }

    /// Sends a payload along an itinerary, which may leave out steps and lead elsewhere, and
    /// returns the id of the message. The steps here follow it.
    ///
    /// # Errors
    ///
    /// As [`send_with`](Self::send_with); [`Error::InvalidOption`] for an itinerary that is
    /// finished.
    pub async fn send_slip(
        &self,
        itinerary: &Itinerary,
        payload: &In,
        envelope: Envelope,
    ) -> Result<String> {
        let Some(stop) = itinerary.next() else {
            return Err(Error::invalid("itinerary", itinerary.to_header(), "is finished"));
        };
        let envelope = envelope.header(Itinerary::HEADER, itinerary.to_header());
        let id = envelope.id().to_owned();
        self.enter(stop.exchange(), stop.routing_key(), payload, envelope).await?;
        Ok(id)
    }

    async fn enter(
        &self,
        exchange: &str,
        routing_key: &str,
        payload: &In,
        envelope: Envelope,
    ) -> Result<()> {
        let Shared { core, entry, counters, .. } = &*self.shared;
        let content_type = entry.content_type().to_owned();
        let body = match entry.encode(payload) {
            Ok(body) => body,
            Err(source) => return Err(Error::Codec { action: "encode", content_type, source }),
        };
        let content_type = Some(content_type);
        let draft = Draft {
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            mandatory: true,
            envelope,
            properties: Properties { content_type, persistent: true, ..Properties::default() },
            body,
        };
        core.publish_on_behalf(compose(core, draft)?).await?;
        counters.entered.add();
        Ok(())
    }
}

/// Steps by hand.
impl<In> Pipeline<In> {
    /// Returns what a step sends on as JSON, for a step that publishes by itself, such as through
    /// an outbox within its own transaction; none after the last step, and at the end of a slip.
    ///
    /// Run such a step with a consumer of its queue, and leave it out of this process by
    /// [`only`](super::PipelineBuilder::only). An end that it finds is not among the counts here.
    ///
    /// # Errors
    ///
    /// Rejects the message, for `?` in its handler: the slip leads nowhere or cannot be read, the
    /// payload cannot be encoded, or the name is no step's.
    pub fn next_hop<Next: Serialize + 'static>(
        &self,
        step: &str,
        envelope: &Envelope,
        next: &Next,
    ) -> std::result::Result<Option<NextHop>, HandlerError> {
        self.next_hop_with(step, envelope, next, &JsonCodec)
    }

    /// As [`next_hop`](Self::next_hop), with another codec.
    ///
    /// # Errors
    ///
    /// As [`next_hop`](Self::next_hop).
    pub fn next_hop_with<Next>(
        &self,
        step: &str,
        envelope: &Envelope,
        next: &Next,
        encoder: &impl Encoder<Next>,
    ) -> std::result::Result<Option<NextHop>, HandlerError> {
        self.hop(step, envelope, next, encoder).map_err(HandlerError::reject)
    }

    fn hop<Next>(
        &self,
        step: &str,
        envelope: &Envelope,
        next: &Next,
        encoder: &impl Encoder<Next>,
    ) -> Result<Option<NextHop>> {
        let Shared { core, plan, .. } = &*self.shared;
        let Some(index) = plan.steps.iter().position(|known| known == step) else {
            return Err(Error::invalid("step", step, "is no step of this pipeline"));
        };
        let ahead = plan.ahead(index, envelope);
        let ahead = ahead.map_err(|reason| Error::invalid("slip", envelope.id(), reason))?;
        let way = plan.way(ahead, envelope, core.clock().now());
        let Way::On { exchange, routing_key, envelope } = way else { return Ok(None) };
        let content_type = encoder.content_type().to_owned();
        match encoder.encode(next) {
            Ok(body) => {
                let envelope = *envelope;
                Ok(Some(NextHop { exchange, routing_key, envelope, content_type, body }))
            }
            Err(source) => Err(Error::Codec { action: "encode", content_type, source }),
        }
    }
}

/// Looking after it.
impl<In> Pipeline<In> {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.plan.name
    }

    /// Returns the names of all steps, in their order.
    #[must_use]
    pub fn steps(&self) -> &[String] {
        &self.shared.plan.steps
    }

    /// Returns the queue of a step; none for a name that is no step.
    #[must_use]
    pub fn queue_for(&self, step: &str) -> Option<String> {
        let plan = &self.shared.plan;
        plan.steps.iter().any(|known| known == step).then(|| plan.queue(step))
    }

    /// Returns the consumer of a step, for its counts, to pause and to resume it; none for a step
    /// that does not run here.
    #[must_use]
    pub fn step(&self, step: &str) -> Option<&Consumer> {
        let mut consumers = self.shared.consumers.iter();
        consumers.find_map(|(name, consumer)| (name == step).then_some(consumer))
    }

    /// Returns the counts since the pipeline was built, of this process.
    #[must_use]
    pub fn stats(&self) -> PipelineStats {
        let counters = &self.shared.counters;
        let steps = self.shared.consumers.iter().map(|(_, consumer)| consumer.stats());
        let (failed, in_flight) = steps.fold((0, 0), |(failed, running), step| {
            (failed + step.dead_lettered + step.parked, running + step.in_flight)
        });
        PipelineStats {
            entered: counters.entered.get(),
            completed: counters.completed.get(),
            ended_early: counters.ended_early.get(),
            failed,
            in_flight,
        }
    }

    /// Returns how many runs were started here.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.stats().entered
    }

    /// Returns how many runs ended here with their last step.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.stats().completed
    }

    /// Returns how many runs a step here ended before the last.
    #[must_use]
    pub fn ended_early(&self) -> u64 {
        self.stats().ended_early
    }

    /// Returns how many messages the steps here have dead-lettered or parked.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.stats().failed
    }

    /// Returns how many handlers run here now.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.stats().in_flight
    }

    /// Stops the steps that run here, in good order, all at once. Messages stay in their queues.
    ///
    /// Every clone is closed with it. Closing twice is harmless. Dropping the future leaves the
    /// rest to the background.
    pub async fn close(&self) -> Shutdown {
        let closing = self.shared.consumers.iter().map(|(_, consumer)| consumer.close());
        let ended = futures::future::join_all(closing).await;
        Shutdown { abandoned: ended.iter().map(Shutdown::abandoned).sum() }
    }
}

impl<In> Clone for Pipeline<In> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<In> fmt::Debug for Pipeline<In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("name", &self.name())
            .field("steps", &self.steps())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
