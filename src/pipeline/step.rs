//! One step: the handler, and its result on the way to the next.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};

use super::{
    handle::Counters,
    plan::{Ahead, Plan, Way},
};
use crate::{
    connection::Core,
    consume::{
        HandlerError, Handling, NextHop, Outcome, Process, catching_panics, decode, send_on,
    },
    error::{BoxError, Error},
    message::{Decoder, Encoder, Envelope, Message, Properties, Received, header},
    publish::{Draft, compose},
    telemetry::metric::{PIPELINE_RUN_DURATION, PIPELINE_RUN_TOTAL},
};

/// The handler of a step, behind a type that is the same for all.
pub(super) type Handle<I, O> =
    Box<dyn Fn(Message<I>) -> BoxFuture<'static, Result<Option<O>, HandlerError>> + Send + Sync>;

/// Handles the messages of one step.
pub(super) struct StepProcess<I, O> {
    pub(super) core: Arc<Core>,
    pub(super) plan: Arc<Plan>,
    pub(super) counters: Arc<Counters>,
    pub(super) index: usize,
    pub(super) description: Option<String>,
    pub(super) decoder: Arc<dyn Decoder<I>>,
    pub(super) encoder: Arc<dyn Encoder<O>>,
    pub(super) handle: Handle<I, O>,
}

impl<I: Send + 'static, O: Send + 'static> Process for StepProcess<I, O> {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        self.step(received).map(Handling::Done).boxed()
    }
}

impl<I: Send + 'static, O: Send + 'static> StepProcess<I, O> {
    async fn step(&self, received: Arc<Received>) -> Outcome {
        // Before any work is done: what can go nowhere should leave no effects behind.
        let ahead = match self.plan.ahead(self.index, &received.envelope) {
            Ok(ahead) => ahead,
            Err(reason) => return Outcome::Reject(reason),
        };
        let mut result = None;
        let outcome = catching_panics(async {
            let payload = match decode(&*self.decoder, &received) {
                Ok(payload) => payload,
                Err(undecodable) => return undecodable,
            };
            let next = match (self.handle)(Message::new(payload, Arc::clone(&received))).await {
                Ok(next) => next,
                Err(error) => return error.into_outcome(),
            };
            match next.map(|next| self.encoder.encode(&next)).transpose() {
                Ok(body) => {
                    result = Some(body);
                    Outcome::Ack
                }
                Err(error) => Outcome::Reject(unencodable(&error)),
            }
        })
        .await;
        match result {
            Some(body) => self.send_on(&received, ahead, body).await,
            None => outcome,
        }
    }

    async fn send_on(&self, received: &Received, ahead: Ahead, body: Option<Bytes>) -> Outcome {
        let way = self.plan.way(ahead, &received.envelope, self.core.clock().now());
        match (way, body) {
            (Way::On { exchange, routing_key, envelope }, Some(body)) => {
                let envelope = self.described(answerable(*envelope, received));
                let content_type = self.encoder.content_type().to_owned();
                let hop = NextHop { exchange, routing_key, envelope, content_type, body };
                send_on(&self.core, compose(&self.core, hop.into_draft())).await
            }
            (Way::On { .. }, None) => {
                let told = self.answer(received, None).await;
                self.ended(received, "ended_early", told)
            }
            (Way::Complete, body) => {
                let told = self.complete(received, body).await;
                self.ended(received, "completed", told)
            }
        }
    }

    /// Publishes the result of the run to where results go, and to whoever waits for it.
    async fn complete(&self, received: &Received, body: Option<Bytes>) -> Outcome {
        if let (Some((exchange, routing_key)), Some(body)) = (&self.plan.results, &body) {
            let to = format!("{exchange}/{routing_key}");
            let envelope = self.described(received.envelope.next_hop(&to).without_slip());
            let content_type = self.encoder.content_type().to_owned();
            let (exchange, routing_key) = (exchange.clone(), routing_key.clone());
            let body = body.clone();
            let hop = NextHop { exchange, routing_key, envelope, content_type, body };
            let sent = send_on(&self.core, compose(&self.core, hop.into_draft())).await;
            if sent != Outcome::Ack {
                return sent;
            }
        }
        self.answer(received, body).await
    }

    /// Answers a run that was started as a request; an early end is answered with JSON `null`.
    async fn answer(&self, received: &Received, body: Option<Bytes>) -> Outcome {
        let Some(address) = received.reply_to() else { return Outcome::Ack };
        let content_type = match body {
            Some(_) => self.encoder.content_type(),
            None => "application/json",
        };
        let draft = Draft {
            exchange: String::new(),
            routing_key: address.to_owned(),
            mandatory: true,
            envelope: Envelope::of(format!("{}.result", self.plan.name))
                .correlation(received.envelope.correlation_id())
                .caused_by(received.envelope.id()),
            properties: Properties {
                content_type: Some(content_type.to_owned()),
                ..Properties::default()
            },
            body: body.unwrap_or_else(|| Bytes::from_static(b"null")),
        };
        let sent = match compose(&self.core, draft) {
            Ok(reply) => self.core.publish_on_behalf(reply).await,
            Err(error) => Err(error),
        };
        match sent {
            // Whoever waited has gone; the run is complete all the same.
            Ok(()) | Err(Error::Unroutable { .. }) => Outcome::Ack,
            Err(error) => send_on(&self.core, Err(error)).await,
        }
    }

    /// Counts the end of a run, once its result is where it belongs.
    fn ended(&self, received: &Received, outcome: &'static str, told: Outcome) -> Outcome {
        if told != Outcome::Ack {
            return told;
        }
        let counters = &self.counters;
        let counter =
            if outcome == "completed" { &counters.completed } else { &counters.ended_early };
        counter.add();
        let step = &self.plan.steps[self.index];
        let labels = [
            metrics::Label::new("pipeline", self.plan.name.clone()),
            metrics::Label::new("step", step.clone()),
            metrics::Label::from_static_parts("outcome", outcome),
        ];
        metrics::counter!(PIPELINE_RUN_TOTAL, labels.to_vec()).increment(1);
        let age = received
            .envelope
            .first_seen_ms()
            .map_or(0, |since| self.core.clock().now_ms().saturating_sub(since));
        let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
        metrics::histogram!(PIPELINE_RUN_DURATION, labels.to_vec()).record(age);
        let pipeline = self.plan.name.as_str();
        tracing::debug!(pipeline, step, outcome, "pipeline.run_finished");
        told
    }

    fn described(&self, envelope: Envelope) -> Envelope {
        match &self.description {
            Some(name) => envelope.message_type_named(name),
            None => envelope,
        }
    }
}

pub(super) fn unencodable(error: &BoxError) -> String {
    format!("its result cannot be encoded: {}", crate::error::with_causes(&**error))
}

/// Keeps the reply address over the hop, also of a request that has it as a property only.
pub(super) fn answerable(envelope: Envelope, received: &Received) -> Envelope {
    match received.reply_to() {
        Some(address) => envelope.header(header::REPLY_TO, address),
        None => envelope,
    }
}
