//! One delivery, from its arrival to its settlement.

use std::{sync::Arc, time::Duration};

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::{
    RetryPolicy,
    counters::{Counter, Counters},
    decide::{Cause, Outcome, Step, decide},
    process::{Handling, Process},
    set_aside::{noting_origin, publish_copy, set_aside, set_aside_envelope},
};
use crate::{
    connection::Core,
    error::{Error, Result, with_causes},
    message::{Envelope, Received},
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
    /// Whether copies carry the headers that tools of other stacks look for.
    pub(super) exception_headers: bool,
    /// Cuts waits short when the consumer stops.
    pub(super) stop: CancellationToken,
}

/// Reads a delivery, and takes the right to settle it off it.
pub(super) fn receive(core: &Core, queue: &str, delivery: Delivery) -> (Received, Box<dyn Settle>) {
    let Delivery { exchange, routing_key, redelivered, properties, body, settle } = delivery;
    let envelope = Envelope::from_properties(&properties, &routing_key, core.clock().now_ms());
    let queue = queue.to_owned();
    (Received { queue, exchange, routing_key, redelivered, envelope, properties, body }, settle)
}

impl Worker {
    /// Handles a delivery. `place` is its share of the concurrency, given back before any wait.
    pub(super) async fn handle(&self, delivery: Delivery, place: OwnedSemaphorePermit) {
        self.counters.received.add();
        let (received, settle) = receive(&self.core, &self.queue, delivery);
        let received = Arc::new(received);
        let handling = {
            let _running = self.counters.in_flight.enter();
            self.process.process(Arc::clone(&received)).await
        };
        let step = match handling {
            Handling::Done(outcome) => self.decide(outcome, &received.envelope),
            Handling::Duplicate => return self.ack(settle, &self.counters.duplicates).await,
            Handling::Stopped => return self.give_back(settle).await,
            Handling::InProgress => {
                drop(place);
                return self.put_back(&received, settle).await;
            }
        };
        if step != Step::Ack {
            drop(place);
        }
        self.carry_out(step, &received, settle).await;
    }

    /// Publishes a message unchanged to its own queue while another consumer handles its twin.
    ///
    /// Never a plain requeue, which counts toward a quorum queue's delivery limit; never an
    /// acknowledgement as a duplicate, since the other holder may still fail (wire contract,
    /// section 14).
    async fn put_back(&self, original: &Received, settle: Box<dyn Settle>) {
        let same = original.envelope.clone();
        self.again_after(TWIN_WAIT, same, original, settle, &self.counters.in_progress).await;
    }

    fn decide(&self, outcome: Outcome, envelope: &Envelope) -> Step {
        let attempt = u32::try_from(envelope.attempt()).unwrap_or(1);
        let age = envelope.first_seen_ms().map(|first_seen| {
            let age = self.core.clock().now_ms().saturating_sub(first_seen);
            Duration::from_millis(u64::try_from(age).unwrap_or(0))
        });
        decide(outcome, attempt, age, &self.policy, &self.queue)
    }

    async fn carry_out(&self, step: Step, original: &Received, settle: Box<dyn Settle>) {
        let (retried, deferred) = (&self.counters.retried, &self.counters.deferred);
        match step {
            Step::Ack => self.ack(settle, &self.counters.acked).await,
            Step::RetryInBroker { rung, delay } => {
                let next = original.envelope.next_attempt();
                self.again_by(&rung, delay, next, original, settle, retried).await;
            }
            Step::RetryInConsumer(delay) => {
                let delay = self.policy.jittered(delay, fastrand::f64());
                let next = original.envelope.next_attempt();
                self.again_after(delay, next, original, settle, retried).await;
            }
            Step::DeferInBroker { rung, delay } => {
                let same = original.envelope.clone();
                self.again_by(&rung, delay, same, original, settle, deferred).await;
            }
            Step::DeferInConsumer(delay) => {
                let same = original.envelope.clone();
                self.again_after(delay, same, original, settle, deferred).await;
            }
            Step::DeadLetter(cause, error) => {
                let target = standard::dead_letter_name(&self.queue);
                let counter = &self.counters.dead_lettered;
                self.set_aside(&target, (cause, &error), original, settle, counter).await;
            }
            Step::Park(cause, error) => {
                let target = standard::parked_name(&self.queue);
                let counter = &self.counters.parked;
                self.set_aside(&target, (cause, &error), original, settle, counter).await;
            }
        }
    }

    /// Publishes the copy to a rung, which gives it back after the delay; waits here where the
    /// rung is missing.
    async fn again_by(
        &self,
        rung: &str,
        delay: Duration,
        envelope: Envelope,
        original: &Received,
        settle: Box<dyn Settle>,
        counter: &Counter,
    ) {
        match self.publish_copy(original, envelope.clone(), rung, &*settle).await {
            Err(Error::Unroutable { .. }) => {
                tracing::warn!(queue = self.queue, rung, "the retry rung is missing; waiting here");
                self.counters.rung_missing.add();
                self.again_after(delay, envelope, original, settle, counter).await;
            }
            copied => self.finish(copied, rung, settle, counter).await,
        }
    }

    /// Holds the delivery, then publishes the copy to its own queue. A stop gives it back.
    async fn again_after(
        &self,
        delay: Duration,
        envelope: Envelope,
        original: &Received,
        settle: Box<dyn Settle>,
        counter: &Counter,
    ) {
        if !self.wait(delay).await {
            return self.give_back(settle).await;
        }
        let copied = self.publish_copy(original, envelope, &self.queue, &*settle).await;
        self.finish(copied, &self.queue, settle, counter).await;
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
        target: &str,
        (cause, error): (Cause, &str),
        original: &Received,
        settle: Box<dyn Settle>,
        counter: &Counter,
    ) {
        if !settle.is_live() {
            return self.settled_too_late(&channel_gone());
        }
        let id = original.envelope.id();
        tracing::warn!(queue = self.queue, target, id, error, "setting a message aside");
        let envelope = set_aside_envelope(original, cause, error, self.exception_headers);
        let copied = set_aside(&self.core, original, &envelope, target).await;
        self.finish(copied, target, settle, counter).await;
    }

    /// Acknowledges the original if its copy landed, else gives it back.
    async fn finish(
        &self,
        copied: Result<()>,
        target: &str,
        settle: Box<dyn Settle>,
        counter: &Counter,
    ) {
        match copied {
            Ok(()) => self.ack(settle, counter).await,
            // Nothing to hold or give back: the broker delivers the original again.
            Err(error) if !settle.is_live() => self.settled_too_late(&error),
            Err(error) => {
                let error = with_causes(&error);
                tracing::error!(queue = self.queue, target, error, "the copy did not land");
                self.counters.set_aside_failed.add();
                self.wait(HOLD).await;
                self.give_back(settle).await;
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

    async fn ack(&self, settle: Box<dyn Settle>, counter: &Counter) {
        match settle.ack().await {
            Ok(()) => counter.add(),
            Err(error) => self.settled_too_late(&error),
        }
    }

    async fn give_back(&self, settle: Box<dyn Settle>) {
        if let Err(error) = settle.nack(true).await {
            self.settled_too_late(&error);
        }
    }

    fn settled_too_late(&self, error: &Error) {
        tracing::debug!(queue = self.queue, %error, "too late to settle; the broker delivers again");
        self.counters.settle_failed.add();
    }
}

fn channel_gone() -> Error {
    Error::Interrupted { reason: "the delivering channel is gone".into() }
}
