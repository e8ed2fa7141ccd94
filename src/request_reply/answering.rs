//! One request: from its arrival to its reply, and what becomes of it then.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};

use super::{responder_error::ResponderError, stats::ResponderCounters};
use crate::{
    clock::millis,
    connection::Core,
    consume::{Handling, Outcome, Process, catching_panics, decode},
    error::{Error, Result, with_causes},
    message::{Decoder, Encoder, Envelope, Message, Properties, Received, header},
    publish::{Draft, compose},
};

/// The names of the failures that are not the handler's.
const PANIC: &str = "Panic";
const UNDECODABLE: &str = "Undecodable";
const UNENCODABLE: &str = "Unencodable";
const UNSENDABLE: &str = "Unsendable";

/// A handler of requests, behind a type that is the same for all.
pub(super) type Handle<Q, A> =
    Box<dyn Fn(Message<Q>) -> BoxFuture<'static, Result<A, ResponderError>> + Send + Sync>;

/// Answers requests.
pub(super) struct Answering<Q, A> {
    pub(super) core: Arc<Core>,
    pub(super) decoder: Arc<dyn Decoder<Q>>,
    pub(super) encoder: Arc<dyn Encoder<A>>,
    pub(super) handle: Handle<Q, A>,
    pub(super) reply_type: Option<String>,
    pub(super) clock_tolerance: std::time::Duration,
    pub(super) counters: Arc<ResponderCounters>,
}

/// What a reply says: an encoded answer, or why there is none.
pub(super) type Answer = Result<Bytes, ResponderError>;

impl<Q: Send + 'static, A: Send + 'static> Process for Answering<Q, A> {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        self.answer(received).map(Handling::Done).boxed()
    }
}

impl<Q: Send + 'static, A: Send + 'static> Answering<Q, A> {
    async fn answer(&self, request: Arc<Received>) -> Outcome {
        let envelope = Message::new((), Arc::clone(&request));
        let Some(address) = envelope.reply_to() else {
            self.counters.unanswerable.add();
            return Outcome::Reject("the request has no reply address".into());
        };
        if self.is_expired(&request) {
            self.counters.expired.add();
            tracing::debug!(id = envelope.id(), "dropping a request whose caller has gone");
            return Outcome::Ack;
        }
        let (answer, outcome) = self.find_answer(&request).await;
        match (&answer, &outcome) {
            (_, Outcome::Undecodable(_)) => self.counters.undecodable.add(),
            (Err(_), _) => self.counters.failed.add(),
            (Ok(_), _) => {}
        }
        let sent = self.reply(&request, address, &answer).await;
        self.settle(&request, address, answer.is_ok(), outcome, sent).await
    }

    /// Whether the caller had stopped waiting, by the request's first-seen time and TTL.
    ///
    /// The broker drops requests that expire in their queue; these expired on the way from it.
    fn is_expired(&self, request: &Received) -> bool {
        let ttl = request.properties.expiration.as_deref().and_then(|ttl| ttl.parse::<i64>().ok());
        let (Some(ttl), Some(first_seen)) = (ttl, request.envelope.first_seen_ms()) else {
            return false;
        };
        let tolerance = i64::try_from(millis(self.clock_tolerance)).unwrap_or(i64::MAX);
        let deadline = first_seen.saturating_add(ttl).saturating_add(tolerance);
        self.core.clock().now_ms() > deadline
    }

    /// Decodes, runs the handler and encodes; what the reply says, and what becomes of the request
    /// once it is sent.
    async fn find_answer(&self, request: &Arc<Received>) -> (Answer, Outcome) {
        let mut answer = None;
        let outcome = catching_panics(async {
            let found = self.run_handler(request).await;
            let (said, outcome) = match found {
                Ok(body) => (Ok(body), Outcome::Ack),
                Err((error, outcome)) => (Err(error), outcome),
            };
            answer = Some(said);
            outcome
        })
        .await;
        match (answer, &outcome) {
            (Some(answer), _) => (answer, outcome),
            (None, Outcome::Panic(text)) => (Err(ResponderError::new(PANIC, text)), outcome),
            (None, _) => (Err(ResponderError::new(PANIC, "no text")), outcome),
        }
    }

    async fn run_handler(
        &self,
        request: &Arc<Received>,
    ) -> Result<Bytes, (ResponderError, Outcome)> {
        let question = decode(&*self.decoder, request).map_err(|outcome| {
            let text = match &outcome {
                Outcome::Undecodable(text) => text.as_str(),
                _ => "",
            };
            (ResponderError::new(UNDECODABLE, text), outcome)
        })?;
        let rejected = |error: ResponderError| {
            let outcome = Outcome::Reject(error.to_string());
            (error, outcome)
        };
        let message = Message::new(question, Arc::clone(request));
        let answer = (self.handle)(message).await.map_err(rejected)?;
        self.encoder
            .encode(&answer)
            .map_err(|error| rejected(ResponderError::new(UNENCODABLE, with_causes(&*error))))
    }

    /// Publishes a reply, confirmed and mandatory.
    async fn reply(&self, request: &Received, address: &str, answer: &Answer) -> Result<()> {
        let content_type = self.encoder.content_type();
        let draft = reply_draft(request, address, self.reply_type.as_deref(), content_type, answer);
        self.core.publish_on_behalf(compose(&self.core, draft)?).await
    }

    /// What becomes of the request after its reply was sent, or was not.
    async fn settle(
        &self,
        request: &Received,
        address: &str,
        is_answer: bool,
        outcome: Outcome,
        sent: Result<()>,
    ) -> Outcome {
        let id = request.envelope.id();
        match sent {
            Ok(()) => {
                if is_answer {
                    self.counters.answered.add();
                }
                outcome
            }
            Err(Error::Unroutable { .. }) => {
                tracing::debug!(id, address, "the requester is gone");
                self.counters.requester_gone.add();
                outcome
            }
            // Too large, for instance: it would fail the same way every time.
            Err(error @ (Error::InvalidOption { .. } | Error::BrokerRefused { .. })) => {
                let error = with_causes(&error);
                tracing::warn!(id, address, error, "a reply cannot be sent");
                if !is_answer {
                    return outcome;
                }
                self.counters.failed.add();
                let failure = ResponderError::new(UNSENDABLE, &error);
                let outcome = Outcome::Reject(failure.to_string());
                // The request is set aside whether the caller hears of it or not.
                let _ = self.reply(request, address, &Err(failure)).await;
                outcome
            }
            Err(error) => {
                let reason = with_causes(&error);
                tracing::warn!(id, address, reason, "a reply was not sent; trying again");
                self.counters.reply_failed.add();
                let reason = format!("the reply could not be published: {reason}");
                Outcome::Retry { reason, after: None }
            }
        }
    }
}

/// A reply as it goes out (wire contract, sections 9.3 and 9.4): on the request's correlation,
/// caused by it, through the default exchange.
pub(super) fn reply_draft(
    request: &Received,
    address: &str,
    reply_type: Option<&str>,
    content_type: &str,
    answer: &Answer,
) -> Draft {
    let asked = &request.envelope;
    let kind = reply_type.map_or_else(|| format!("{}.reply", asked.message_type()), str::to_owned);
    let envelope = Envelope::of(kind).correlation(asked.correlation_id()).caused_by(asked.id());
    let (envelope, content_type, body) = match answer {
        Ok(body) => (envelope, content_type, body.clone()),
        Err(error) => (
            envelope.header(header::RESPONDER_ERROR, error.to_header()),
            "application/json",
            Bytes::from_static(b"null"),
        ),
    };
    Draft {
        exchange: String::new(),
        routing_key: address.to_owned(),
        mandatory: true,
        envelope,
        properties: Properties {
            content_type: Some(content_type.to_owned()),
            persistent: true,
            ..Properties::default()
        },
        body,
    }
}
