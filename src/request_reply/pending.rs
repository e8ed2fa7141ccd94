//! The calls in flight, each found by its correlation.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::Span;

use super::{
    error::RequestError,
    stats::{RequesterCounters, RequesterStats},
};
use crate::{
    message::Received,
    telemetry::metric::{REQUEST_DURATION, REQUEST_TOTAL},
};

/// The calls of one requester that wait for replies.
///
/// An entry lives as long as its [`InFlight`]: it goes with the reply that ends the call, or with
/// the caller, whichever is first.
#[derive(Debug, Default)]
pub(super) struct Pending {
    calls: DashMap<String, Entry>,
    counters: RequesterCounters,
}

/// What a call waits for.
pub(super) type Reply = Result<Arc<Received>, Lost>;

/// Why there will be no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The reply queue is gone, and the replies with it.
    ReplyQueue,
    /// The requester was closed.
    Closed,
}

impl From<Lost> for RequestError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::ReplyQueue => Self::ConnectionLost,
            Lost::Closed => Self::Closed,
        }
    }
}

#[derive(Debug)]
struct Entry {
    /// Which of the requester's reply queues, counted from 0, the reply will come to.
    incarnation: u64,
    caller: Caller,
}

#[derive(Debug)]
enum Caller {
    /// Waits for one reply.
    One(oneshot::Sender<Reply>),
    /// Waits for any number; the channel holds as many as may wait to be read.
    Many(mpsc::Sender<Reply>),
}

impl Caller {
    /// Hands a reply over; false if nobody takes it.
    fn tell(self, reply: Reply) -> bool {
        match self {
            Self::One(caller) => caller.send(reply).is_ok(),
            Self::Many(caller) => caller.try_send(reply).is_ok(),
        }
    }
}

impl Pending {
    /// Enters a call for one reply.
    pub(super) fn enter_one(
        self: &Arc<Self>,
        id: &str,
        incarnation: u64,
    ) -> (InFlight, oneshot::Receiver<Reply>) {
        let (caller, reply) = oneshot::channel();
        (self.enter(id, incarnation, Caller::One(caller)), reply)
    }

    /// Enters a call for many replies, of which at most `waiting` may wait to be read.
    pub(super) fn enter_many(
        self: &Arc<Self>,
        id: &str,
        incarnation: u64,
        waiting: usize,
    ) -> (InFlight, mpsc::Receiver<Reply>) {
        let (caller, replies) = mpsc::channel(waiting);
        (self.enter(id, incarnation, Caller::Many(caller)), replies)
    }

    fn enter(self: &Arc<Self>, id: &str, incarnation: u64, caller: Caller) -> InFlight {
        self.calls.insert(id.to_owned(), Entry { incarnation, caller });
        InFlight {
            pending: Arc::clone(self),
            id: id.to_owned(),
            since: Instant::now(),
            span: Span::none(),
            end: Some(End::Cancelled),
        }
    }

    /// Gives a reply to the call of exactly its correlation; counts it where there is none.
    pub(super) fn complete(&self, reply: Arc<Received>) {
        let id = reply.envelope.correlation_id().to_owned();
        let only = self.calls.remove_if(&id, |_, entry| matches!(entry.caller, Caller::One(_)));
        let taken = match only {
            Some((_, entry)) => entry.caller.tell(Ok(reply)),
            None => self.calls.get(&id).is_some_and(|entry| match &entry.caller {
                Caller::Many(caller) => caller.try_send(Ok(reply)).is_ok(),
                // The same id was never entered twice.
                Caller::One(_) => false,
            }),
        };
        if !taken {
            tracing::debug!(correlation = id, "a reply that no call waits for");
            self.counters.unmatched.add();
        }
    }

    /// Fails every call whose reply would come to this reply queue or an earlier one, and returns
    /// how many there were.
    pub(super) fn fail(&self, up_to: u64, why: Lost) -> usize {
        let lost: Vec<String> = self
            .calls
            .iter()
            .filter(|entry| entry.incarnation <= up_to)
            .map(|entry| entry.key().clone())
            .collect();
        // Told outside the map's locks.
        let mut failed = 0;
        for id in lost {
            if let Some((_, entry)) = self.calls.remove(&id) {
                failed += usize::from(entry.caller.tell(Err(why)));
            }
        }
        failed
    }

    pub(super) fn stats(&self) -> RequesterStats {
        self.counters.snapshot(self.calls.len())
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    TimedOut,
    Failed,
    Cancelled,
}

/// A call's place in the map: dropping it takes the entry out, however the call ends.
#[derive(Debug)]
pub(super) struct InFlight {
    pending: Arc<Pending>,
    id: String,
    since: Instant,
    span: Span,
    /// None where the call goes on under another entry.
    end: Option<End>,
}

impl InFlight {
    /// Ends the call.
    pub(super) fn end(mut self, end: End) {
        self.end = Some(end);
    }

    /// Ends the call with an error, which is given back.
    pub(super) fn fail(self, error: RequestError) -> RequestError {
        self.end(match error {
            RequestError::TimedOut { .. } => End::TimedOut,
            _ => End::Failed,
        });
        error
    }

    /// Sets the span that is told how the call ended.
    pub(super) fn in_span(mut self, span: Span) -> Self {
        self.span = span;
        self
    }

    /// Takes the entry out without ending the call.
    pub(super) fn withdraw(mut self) {
        self.end = None;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.pending.calls.remove(&self.id);
        let Some(end) = self.end else { return };
        let counters = &self.pending.counters;
        let (counter, outcome) = match end {
            End::Answered => (&counters.answered, "answered"),
            End::TimedOut => (&counters.timed_out, "timed_out"),
            End::Failed => (&counters.failed, "failed"),
            End::Cancelled => (&counters.cancelled, "cancelled"),
        };
        counter.add();
        self.span.record("messaging.acemq.outcome", outcome);
        if matches!(end, End::TimedOut | End::Failed) {
            self.span.record("otel.status_code", "ERROR");
        }
        metrics::counter!(REQUEST_TOTAL, "outcome" => outcome).increment(1);
        metrics::histogram!(REQUEST_DURATION, "outcome" => outcome).record(self.since.elapsed());
    }
}
