//! What a stop does with a message: runs the handler, stamps the slip and sends it on, or back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};

use super::{
    answer::{Forward, StopHandler},
    undo::Undo,
    way::{self, Limits, Way, back, way},
};
use crate::{
    connection::Core,
    consume::{
        Counter, HandlerResult, Handling, Outcome, Process, RetryPolicy, catching_panics, decode,
        send_on, sets_aside,
    },
    message::{Decoder, Envelope, HeaderValue, Message, Properties, Received},
    publish::{Draft, compose},
};

pub(super) type UndoHandler<T> =
    Box<dyn Fn(Message<T>) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

/// What a stop is for.
pub(super) enum Role<T> {
    Stop(Box<dyn StopHandler<T>>),
    Undo(UndoHandler<T>),
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) forwarded: Counter,
    pub(super) completed: Counter,
    pub(super) sent_back: Counter,
}

/// Handles the messages of one stop.
pub(super) struct Stopping<T> {
    pub(super) core: Arc<Core>,
    pub(super) decoder: Arc<dyn Decoder<T>>,
    pub(super) role: Role<T>,
    pub(super) policy: RetryPolicy,
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
}

impl<T: Send + 'static> Process for Stopping<T> {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        async move {
            let outcome = match &self.role {
                Role::Stop(handler) => {
                    let (outcome, own) = self.at_stop(&**handler, &received).await;
                    self.unless_given_up(outcome, own, &received).await
                }
                Role::Undo(undo) => self.at_undo(undo, &received).await,
            };
            Handling::Done(outcome)
        }
        .boxed()
    }
}

/// The way there.
impl<T: Send + 'static> Stopping<T> {
    /// Also returns what undoes this stop, if its work is done.
    async fn at_stop(
        &self,
        handler: &dyn StopHandler<T>,
        received: &Arc<Received>,
    ) -> (Outcome, Option<Undo>) {
        // Before any work is done: what can go nowhere should leave no effects behind.
        if let Err(reason) = way::readable(&received.envelope) {
            return (Outcome::Reject(reason), None);
        }
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
            Some(forward) => {
                let own = forward.undo.clone();
                (self.forward(forward, received).await, own)
            }
            None => (outcome, None),
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

    /// Sends the slip back if the message is about to be dead-lettered, before it is. Where a
    /// person is to look at it, nothing is undone: the message may still go on.
    async fn unless_given_up(
        &self,
        outcome: Outcome,
        own: Option<Undo>,
        received: &Received,
    ) -> Outcome {
        let set_aside =
            sets_aside(&outcome, received.envelope.attempt(), self.age(received), &self.policy);
        match set_aside.filter(|(cause, _)| !cause.is_parked()) {
            Some((_, reason)) => match self.send_back(received, own, &reason).await {
                Ok(_) => outcome,
                Err(again) => again,
            },
            None => outcome,
        }
    }

    fn age(&self, received: &Received) -> Option<Duration> {
        let age = self.core.clock().now_ms().saturating_sub(received.envelope.first_seen_ms()?);
        Some(Duration::from_millis(u64::try_from(age).unwrap_or(0)))
    }
}

/// The way back.
impl<T: Send + 'static> Stopping<T> {
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
        let age = self.age(received);
        let given_up =
            sets_aside(&outcome, received.envelope.attempt(), age, &self.policy).is_some();
        if outcome != Outcome::Ack && !given_up {
            return outcome;
        }
        // What cannot be undone here keeps nothing else from being undone.
        let reason = received.envelope.headers().get(way::REASON);
        let reason = reason.and_then(HeaderValue::as_str).unwrap_or_default();
        match self.send_back(received, None, reason).await {
            Ok(false) if !given_up => {
                self.counters.completed.add();
                outcome
            }
            Ok(_) => outcome,
            Err(again) => again,
        }
    }

    /// Publishes to the last place that undoes something; false if there is none. An error says
    /// that the message has to wait, and its slip is sent back the next time.
    async fn send_back(
        &self,
        received: &Received,
        own: Option<Undo>,
        reason: &str,
    ) -> Result<bool, Outcome> {
        let cannot = |why: &dyn std::fmt::Display| {
            let id = received.envelope.id();
            tracing::error!(id, %why, "what was done along a slip cannot be undone");
            Ok(false)
        };
        let (undo, envelope) = match back(&received.envelope, own, reason) {
            Ok(Some(back)) => back,
            Ok(None) => return Ok(false),
            Err(why) => return cannot(&why),
        };
        let (content_type, body) =
            (received.properties.content_type.clone(), received.body.clone());
        let draft = onward(undo.exchange, undo.routing_key, envelope, content_type, body);
        let sent = match compose(&self.core, draft) {
            Ok(message) => self.core.publish_on_behalf(message).await,
            Err(error) => return cannot(&error),
        };
        match sent {
            Ok(()) => {
                self.counters.sent_back.add();
                Ok(true)
            }
            Err(error) if error.concerns_the_message() => cannot(&error),
            Err(error) => Err(send_on(&self.core, Err(error)).await),
        }
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
