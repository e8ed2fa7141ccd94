//! One delivery, from its arrival to its settlement.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{
    RetryPolicy,
    counters::Counters,
    decide::{Cause, Outcome, Step, decide},
    process::{Handling, Process, catching},
    set_aside::{noting_origin, publish_copy, set_aside, set_aside_envelope},
};
use crate::{
    clock::millis,
    connection::Core,
    error::{Error, Result, with_causes},
    message::{Envelope, Received},
    telemetry::{ConsumerMetrics, Settled, on_behalf_of, process_span},
    topology::standard,
    transport::{Delivery, Settle},
};

/// How long a message is held before it goes back when its copy did not land, so that a broken
/// target does not make a loop at full speed.
const HOLD: Duration = Duration::from_secs(1);

/// How long a message waits while another consumer handles its twin.
const TWIN_WAIT: Duration = Duration::from_secs(1);

/// What every delivery of one consumer shares.
pub(super) struct Worker {
    pub(super) core: Arc<Core>,
    pub(super) queue: String,
    pub(super) policy: RetryPolicy,
    pub(super) process: Box<dyn Process>,
    pub(super) counters: Arc<Counters>,
    pub(super) metrics: ConsumerMetrics,
    /// Whether copies carry the headers that tools of other stacks look for.
    pub(super) exception_headers: bool,
    /// Cuts waits short when the consumer stops.
    pub(super) stop: CancellationToken,
}

/// Reads a delivery, and takes the right to settle it off it.
pub(crate) fn receive(core: &Core, queue: &str, delivery: Delivery) -> (Received, Box<dyn Settle>) {
    let Delivery { exchange, routing_key, redelivered, properties, body, settle } = delivery;
    let envelope = Envelope::from_properties(&properties, &routing_key, core.clock().now_ms());
    let queue = queue.to_owned();
    let span = Span::none();
    let received =
        Received { queue, exchange, routing_key, redelivered, envelope, properties, body, span };
    (received, settle)
}

impl Worker {
    /// Handles a delivery. `place` is its share of the concurrency, given back before any wait.
    pub(super) async fn handle(&self, delivery: Delivery, place: OwnedSemaphorePermit) {
        self.counters.received.add();
        let (mut received, settle) = receive(&self.core, &self.queue, delivery);
        received.span = process_span(&self.queue, &received.routing_key, &received.envelope);
        let received = Arc::new(received);
        let watched = self.metrics.arrived(&received.envelope, &received.span);
        let settled = on_behalf_of(&received, self.settle(&received, settle, place)).await;
        self.counters.settled(settled);
        watched.ended(settled);
    }

    /// Runs the handler and does what its answer asks for.
    async fn settle(
        &self,
        received: &Arc<Received>,
        settle: Box<dyn Settle>,
        place: OwnedSemaphorePermit,
    ) -> Settled {
        let handling = {
            let _running = self.counters.in_flight.enter();
            catching(&*self.process, Arc::clone(received)).await
        };
        let step = match handling {
            Handling::Done(outcome) => self.decide(outcome, &received.envelope),
            Handling::Duplicate => return self.ack(settle, Settled::Duplicate).await,
            Handling::Stopped => return self.give_back(settle).await,
            Handling::InProgress => {
                drop(place);
                return self.put_back(received, settle).boxed().await;
            }
        };
        if step == Step::Ack {
            return self.ack(settle, Settled::Acked).await;
        }
        drop(place);
        // Boxed, as what is rare: a task is moved several times, at the size of its largest branch.
        self.carry_out(step, received, settle).boxed().await
    }

    /// Publishes a message unchanged to its own queue while another consumer handles its twin.
    ///
    /// Never a plain requeue, which counts toward a quorum queue's delivery limit; never an
    /// acknowledgement as a duplicate, since the other holder may still fail (wire contract,
    /// section 14).
    async fn put_back(&self, original: &Received, settle: Box<dyn Settle>) -> Settled {
        let again = Again { envelope: original.envelope.clone(), settled: Settled::InProgress };
        self.again_after(TWIN_WAIT, again, original, settle).await
    }

    fn decide(&self, outcome: Outcome, envelope: &Envelope) -> Step {
        let attempt = u32::try_from(envelope.attempt()).unwrap_or(1);
        let age = envelope.first_seen_ms().map(|first_seen| {
            let age = self.core.clock().now_ms().saturating_sub(first_seen);
            Duration::from_millis(u64::try_from(age).unwrap_or(0))
        });
        decide(outcome, attempt, age, &self.policy, &self.queue)
    }

    async fn carry_out(&self, step: Step, original: &Received, settle: Box<dyn Settle>) -> Settled {
        let envelope = &original.envelope;
        let retry = || Again { envelope: envelope.next_attempt(), settled: Settled::Retried };
        let defer = || Again { envelope: envelope.clone(), settled: Settled::Deferred };
        match step {
            Step::Ack => self.ack(settle, Settled::Acked).await,
            Step::RetryInBroker { rung, delay } => {
                self.again_by(&rung, delay, retry(), original, settle).await
            }
            Step::RetryInConsumer(delay) => {
                let delay = self.policy.jittered(delay, fastrand::f64());
                self.again_after(delay, retry(), original, settle).await
            }
            Step::DeferInBroker { rung, delay } => {
                self.again_by(&rung, delay, defer(), original, settle).await
            }
            Step::DeferInConsumer(delay) => {
                self.again_after(delay, defer(), original, settle).await
            }
            Step::DeadLetter(cause, error) => {
                let target = standard::dead_letter_name(&self.queue);
                let aside = Aside { target, cause, error, settled: Settled::DeadLettered };
                self.set_aside(aside, original, settle).await
            }
            Step::Park(cause, error) => {
                let target = standard::parked_name(&self.queue);
                let aside = Aside { target, cause, error, settled: Settled::Parked };
                self.set_aside(aside, original, settle).await
            }
        }
    }

    /// Publishes the copy to a rung, which gives it back after the delay; waits here where the
    /// rung is missing.
    async fn again_by(
        &self,
        rung: &str,
        delay: Duration,
        again: Again,
        original: &Received,
        settle: Box<dyn Settle>,
    ) -> Settled {
        note_delay(original, delay);
        match self.publish_copy(original, again.envelope.clone(), rung, &*settle).await {
            Err(Error::Unroutable { .. }) => {
                tracing::warn!(queue = self.queue, rung, "the retry rung is missing; waiting here");
                self.counters.rung_missing.add();
                self.metrics.rung_missing(rung);
                self.again_after(delay, again, original, settle).await
            }
            copied => self.finish(copied, rung, settle, again.settled).await,
        }
    }

    /// Holds the delivery, then publishes the copy to its own queue. A stop gives it back.
    async fn again_after(
        &self,
        delay: Duration,
        again: Again,
        original: &Received,
        settle: Box<dyn Settle>,
    ) -> Settled {
        note_delay(original, delay);
        if !self.wait(delay).await {
            return self.give_back(settle).await;
        }
        let copied = self.publish_copy(original, again.envelope, &self.queue, &*settle).await;
        self.finish(copied, &self.queue, settle, again.settled).await
    }

    /// Publishes a copy that will be handled again, unless the original is back in its queue.
    async fn publish_copy(
        &self,
        original: &Received,
        mut envelope: Envelope,
        queue: &str,
        settle: &dyn Settle,
    ) -> Result<()> {
        if !settle.is_live() {
            return Err(channel_gone());
        }
        if self.exception_headers {
            envelope = noting_origin(envelope, original);
        }
        publish_copy(&self.core, original, &envelope, queue).await
    }

    async fn set_aside(
        &self,
        aside: Aside,
        original: &Received,
        settle: Box<dyn Settle>,
    ) -> Settled {
        let Aside { target, cause, error, settled } = aside;
        if !settle.is_live() {
            return self.too_late(&channel_gone());
        }
        let id = original.envelope.id();
        original.span.record("messaging.acemq.reason", error.as_str());
        tracing::warn!(queue = self.queue, target, id, error, "setting a message aside");
        let envelope = set_aside_envelope(original, cause, &error, self.exception_headers);
        let copied = set_aside(&self.core, original, &envelope, &target).await;
        self.finish(copied, &target, settle, settled).await
    }

    /// Acknowledges the original if its copy landed, else gives it back.
    async fn finish(
        &self,
        copied: Result<()>,
        target: &str,
        settle: Box<dyn Settle>,
        settled: Settled,
    ) -> Settled {
        match copied {
            Ok(()) => self.ack(settle, settled).await,
            // Nothing to hold or give back: the broker delivers the original again.
            Err(error) if !settle.is_live() => self.too_late(&error),
            Err(error) => {
                let error = with_causes(&error);
                tracing::error!(queue = self.queue, target, error, "the copy did not land");
                self.counters.set_aside_failed.add();
                self.metrics.copy_lost(target);
                self.wait(HOLD).await;
                self.give_back(settle).await
            }
        }
    }

    /// Waits; false if the consumer stops first.
    async fn wait(&self, delay: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(delay) => true,
            () = self.stop.cancelled() => false,
        }
    }

    /// Acknowledges, which settles the message as what was done with it before.
    async fn ack(&self, settle: Box<dyn Settle>, settled: Settled) -> Settled {
        match settle.ack().await {
            Ok(()) => settled,
            Err(error) => self.too_late(&error),
        }
    }

    async fn give_back(&self, settle: Box<dyn Settle>) -> Settled {
        match settle.nack(true).await {
            Ok(()) => Settled::Returned,
            Err(error) => self.too_late(&error),
        }
    }

    fn too_late(&self, error: &Error) -> Settled {
        tracing::debug!(queue = self.queue, %error, "too late to settle; the broker delivers again");
        Settled::TooLate
    }
}

/// A message that is to be handled again.
struct Again {
    envelope: Envelope,
    /// What the original is once this copy has landed.
    settled: Settled,
}

/// A message that is to be set aside.
struct Aside {
    target: String,
    cause: Cause,
    error: String,
    settled: Settled,
}

fn note_delay(original: &Received, delay: Duration) {
    original.span.record("messaging.acemq.retry_delay_ms", millis(delay));
}

fn channel_gone() -> Error {
    Error::Interrupted { reason: "the delivering channel is gone".into() }
}
