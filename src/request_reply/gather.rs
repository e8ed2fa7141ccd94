//! One request, many answers.

use std::{
    collections::HashSet,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{
    StreamExt,
    stream::{self, BoxStream, Stream},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::{
    Requester,
    call::{Call, CallOptions},
    error::RequestError,
    pending::{End, InFlight},
    reply::{decoded, read_reply},
    requester::{Entered, ManyReplies, Shared},
};

/// Answers that may wait to be read. More are dropped and counted as unmatched, so that a flood of
/// them cannot fill the memory.
const MAX_WAITING: usize = 4096;

/// The answers to one request; see [`Requester::request_many`].
///
/// A stream of each responder's answer or failure. It ends when enough have come or the time is
/// over; if the reply queue is lost or the requester closed, that is its last item.
#[must_use = "dropping it gives the call up"]
pub struct Answers<A> {
    answers: BoxStream<'static, Result<A, RequestError>>,
}

/// What is left of a call for many answers.
struct Gathering {
    in_flight: InFlight,
    replies: ManyReplies,
    deadline: Instant,
    missing: usize,
    /// Replies that were given out, by id: one that comes again is the same answer.
    seen: HashSet<String>,
    any: bool,
    _requester: Arc<Shared>,
}

impl<A: DeserializeOwned + 'static> Answers<A> {
    pub(super) async fn gather(
        requester: &Requester,
        call: Call<'_>,
        count: usize,
        options: CallOptions,
    ) -> Result<Self, RequestError> {
        let timeout = options.time_limit();
        let waiting = count.min(MAX_WAITING);
        let entered = requester
            .enter(&call, options, |pending, id, incarnation| {
                pending.enter_many(id, incarnation, waiting)
            })
            .await?;
        let Entered { in_flight, replies, message, deadline } = entered;
        if let Err(error) = requester.publish(message, deadline).await {
            return Err(in_flight.fail(RequestError::of_publish(error, timeout)));
        }
        let gathering = Gathering {
            in_flight,
            replies,
            deadline,
            missing: count,
            seen: HashSet::new(),
            any: false,
            _requester: requester.keep_alive(),
        };
        let answers =
            stream::unfold(Some(gathering), |gathering| async move { gathering?.next().await });
        Ok(Self { answers: answers.boxed() })
    }
}

impl Gathering {
    /// The next answer, and what is left after it.
    async fn next<A: DeserializeOwned>(
        mut self,
    ) -> Option<(Result<A, RequestError>, Option<Self>)> {
        loop {
            let Ok(reply) = timeout_at(self.deadline, self.replies.recv()).await else {
                let end = if self.any { End::Answered } else { End::TimedOut };
                self.in_flight.end(end);
                return None;
            };
            let reply = match reply {
                Some(Ok(reply)) => reply,
                lost => {
                    let error = match lost {
                        Some(Err(lost)) => lost.into(),
                        _ => RequestError::ConnectionLost,
                    };
                    return Some((Err(self.in_flight.fail(error)), None));
                }
            };
            if !self.seen.insert(reply.envelope.id().to_owned()) {
                continue;
            }
            self.any = true;
            self.missing -= 1;
            let answer = read_reply(Ok(reply), decoded);
            if self.missing == 0 {
                self.in_flight.end(End::Answered);
                return Some((answer, None));
            }
            return Some((answer, Some(self)));
        }
    }
}

impl<A> Stream for Answers<A> {
    type Item = Result<A, RequestError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.answers.poll_next_unpin(context)
    }
}

impl<A> fmt::Debug for Answers<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}
