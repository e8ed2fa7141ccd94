//! Waiting for an answer, and reading it.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use serde::de::DeserializeOwned;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{
    error::RequestError,
    pending::{End, InFlight, Reply},
    requester::{OneReply, Shared},
    responder_error::ResponderError,
};
use crate::message::{Decoder, HeaderValue, JsonCodec, Message, Received, header};

/// A request that the broker has, and whose answer has not been read.
pub(super) struct Flight {
    pub(super) place: InFlight,
    pub(super) replies: OneReply,
    /// The reply that was there before the broker's confirm.
    pub(super) early: Option<Result<Reply, oneshot::error::RecvError>>,
    pub(super) deadline: Instant,
    pub(super) timeout: Duration,
    /// Calls keep their requester open.
    pub(super) _requester: Arc<Shared>,
}

impl Flight {
    /// Waits for the reply, reads it, and ends the call.
    pub(super) async fn land<T>(
        self,
        read: impl FnOnce(&Arc<Received>) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let Self { place, replies, early, deadline, timeout, _requester } = self;
        let reply = match early {
            Some(reply) => Ok(reply),
            None => timeout_at(deadline, replies).await,
        };
        let answer = match reply {
            Err(_) => Err(RequestError::TimedOut { waited: timeout }),
            Ok(Ok(reply)) => read_reply(reply, read),
            // Nobody drops the other end without a word; if so, there is no answer to come.
            Ok(Err(_)) => Err(RequestError::ConnectionLost),
        };
        match answer {
            Ok(answer) => {
                place.end(End::Answered);
                Ok(answer)
            }
            Err(error) => Err(place.fail(error)),
        }
    }
}

/// Reads a reply: the header that says that the responder failed comes before the body.
pub(super) fn read_reply<T>(
    reply: Reply,
    read: impl FnOnce(&Arc<Received>) -> Result<T, RequestError>,
) -> Result<T, RequestError> {
    let reply = reply?;
    let headers = reply.envelope.headers();
    match headers.get(header::RESPONDER_ERROR).and_then(HeaderValue::lenient_text) {
        Some(text) => {
            let (error_type, message) = ResponderError::from_header(&text).into_parts();
            Err(RequestError::ResponderFailed { error_type, message })
        }
        None => read(&reply),
    }
}

/// Decodes the body of a reply as JSON.
pub(super) fn decoded<A: DeserializeOwned>(reply: &Arc<Received>) -> Result<A, RequestError> {
    let content_type = reply.properties.content_type.as_deref();
    let decoded = if Decoder::<A>::accepts(&JsonCodec, content_type) {
        JsonCodec.decode(&reply.body)
    } else {
        Err("the content type is not accepted".into())
    };
    decoded.map_err(|source| RequestError::Undecodable {
        content_type: content_type.unwrap_or_default().to_owned(),
        source,
    })
}

/// Takes a reply as it is.
#[allow(clippy::unnecessary_wraps)] // one of the ways to read a reply
pub(super) fn raw(reply: &Arc<Received>) -> Result<Message<Bytes>, RequestError> {
    Ok(Message::new(reply.body.clone(), Arc::clone(reply)))
}

/// The answer to a request that was sent; see [`Requester::start`](super::Requester::start).
///
/// Await it for the answer. Dropping it gives the call up.
#[must_use = "dropping it gives the call up"]
pub struct PendingReply<A> {
    answer: BoxFuture<'static, Result<A, RequestError>>,
}

impl<A: DeserializeOwned + 'static> PendingReply<A> {
    pub(super) fn new(flight: Flight) -> Self {
        Self { answer: flight.land(decoded).boxed() }
    }
}

impl<A> Future for PendingReply<A> {
    type Output = Result<A, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.poll_unpin(context)
    }
}

impl<A> fmt::Debug for PendingReply<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReply").finish_non_exhaustive()
    }
}
