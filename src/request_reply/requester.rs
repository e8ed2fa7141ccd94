//! Asking.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::{
    call::{Call, CallOptions},
    error::RequestError,
    gather::Answers,
    pending::{InFlight, Pending, Reply},
    replies::{Address, Replies},
    reply::{Flight, PendingReply, decoded, raw},
    stats::RequesterStats,
};
use crate::{
    clock::deadline,
    connection::{AceMq, Core},
    error::{Error, Result},
    message::{Encoder, JsonCodec, Message},
    publish::compose,
    transport::Outgoing,
};

/// Sends requests and finds the answer to each.
///
/// One per application: it owns one reply queue, whatever the number of calls. Cheap to clone.
/// When the last clone and the last call are gone, it closes in the background.
///
/// Every call has a timeout, ends in exactly one way, and leaves nothing behind: dropping its
/// future at any point is safe. See the [module](crate::request_reply) for what happens when
/// something fails.
#[derive(Debug, Clone)]
pub struct Requester {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    core: Arc<Core>,
    pending: Arc<Pending>,
    address: watch::Receiver<Address>,
    /// Closed when the task that hands out replies has ended.
    ended: watch::Receiver<()>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

impl AceMq {
    /// Creates a requester with a reply queue of its own.
    ///
    /// Dropping the future before it completes leaves at most a queue that expires.
    ///
    /// # Errors
    ///
    /// - [`Error::Disconnected`] if there is no connection in time.
    /// - [`Error::BrokerRefused`] if the broker does not let it declare the queue.
    /// - [`Error::Closed`] after [`AceMq::close`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use acemq::{AceMq, Queue, Topology};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mq = AceMq::connect("memory://").await?;
    /// mq.declare(&Topology::new().queue(Queue::new("squares"))).await?;
    /// let responder = mq
    ///     .respond("squares", |n: u64| async move { Ok::<_, std::io::Error>(n * n) })
    ///     .await?;
    ///
    /// let requester = mq.requester().await?;
    /// let square: u64 = requester.request("", "squares", &12, Duration::from_secs(2)).await?;
    /// assert_eq!(square, 144);
    /// # requester.close().await;
    /// # responder.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn requester(&self) -> Result<Requester> {
        let core = Arc::clone(self.core());
        if core.closing().is_cancelled() {
            return Err(Error::Closed);
        }
        let stop = core.closing().child_token();
        let pending = Arc::<Pending>::default();
        let mut replies = Replies::new(Arc::clone(&core), Arc::clone(&pending), stop.clone());
        let first = replies.subscribe().await?;
        let address = replies.address();
        let (end, ended) = watch::channel(());
        core.tasks().spawn(async move {
            replies.run(first).await;
            drop(end);
        });
        let guard = stop.clone().drop_guard();
        let shared = Shared { core, pending, address, ended, stop, _stop_on_drop: guard };
        Ok(Requester { shared: Arc::new(shared) })
    }
}

/// Calling.
impl Requester {
    /// Sends a request as JSON and waits for its answer, of which the message body is decoded.
    ///
    /// `options` is a timeout or [`CallOptions`]. `exchange` is empty for the default exchange,
    /// whose routing keys are queue names.
    ///
    /// # Errors
    ///
    /// - [`RequestError::TimedOut`] if nobody answers in time.
    /// - [`RequestError::ResponderFailed`] as soon as a responder says so.
    /// - [`RequestError::Unroutable`] at once, if no queue takes the request.
    /// - [`RequestError::Undecodable`] if the answer is not an `A`.
    /// - [`RequestError::ConnectionLost`] if the connection was lost before the broker confirmed
    ///   the request, or the reply queue is gone.
    /// - [`RequestError::Closed`] after a close.
    /// - [`RequestError::NotSent`] with the reason.
    pub async fn request<Q: Serialize, A: DeserializeOwned>(
        &self,
        exchange: &str,
        routing_key: &str,
        request: &Q,
        options: impl Into<CallOptions>,
    ) -> Result<A, RequestError> {
        let call = json_call(exchange, routing_key, request)?;
        self.fly(call, options.into()).await?.land(decoded).await
    }

    /// Sends a request and returns when the broker has it; the answer is awaited later.
    ///
    /// The timeout runs from here. Dropping the returned future gives the call up.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request), where they show before the answer.
    pub async fn start<Q: Serialize, A: DeserializeOwned + 'static>(
        &self,
        exchange: &str,
        routing_key: &str,
        request: &Q,
        options: impl Into<CallOptions>,
    ) -> Result<PendingReply<A>, RequestError> {
        let call = json_call(exchange, routing_key, request)?;
        Ok(PendingReply::new(self.fly(call, options.into()).await?))
    }

    /// Sends bytes and returns the whole answer, undecoded: for other codecs, and for what the
    /// answer's envelope says.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request), but for [`RequestError::Undecodable`].
    pub async fn request_raw(
        &self,
        exchange: &str,
        routing_key: &str,
        body: Bytes,
        content_type: &str,
        options: impl Into<CallOptions>,
    ) -> Result<Message<Bytes>, RequestError> {
        let call = Call { exchange, routing_key, content_type, body };
        self.fly(call, options.into()).await?.land(raw).await
    }

    /// Sends one request to many responders and returns their answers as they come, until
    /// `count` have come or the timeout is over, whichever is first.
    ///
    /// The exchange decides who gets the request: a fanout or topic exchange with a queue for each
    /// responder. The same answer delivered twice is given once; what comes after the end is
    /// dropped. Dropping the stream gives the call up.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request), where they show before the answers. A count of zero is
    /// [`RequestError::NotSent`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use acemq::{AceMq, Exchange, Queue, Topology};
    /// use futures::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mq = AceMq::connect("memory://").await?;
    /// let mut topology = Topology::new().exchange(Exchange::fanout("quotes"));
    /// for carrier in ["slow", "fast"] {
    ///     topology = topology.queue(Queue::new(carrier)).bind(carrier, "quotes", "");
    /// }
    /// mq.declare(&topology).await?;
    /// let fast = mq.respond("fast", |kg: u64| async move { Ok::<_, std::io::Error>(kg * 9) }).await?;
    /// let slow = mq.respond("slow", |kg: u64| async move { Ok::<_, std::io::Error>(kg * 4) }).await?;
    ///
    /// let requester = mq.requester().await?;
    /// let answers =
    ///     requester.request_many::<_, u64>("quotes", "", &10, 2, Duration::from_secs(2)).await?;
    /// let mut prices: Vec<u64> = answers.filter_map(|price| async { price.ok() }).collect().await;
    /// prices.sort();
    /// assert_eq!(prices, [40, 90]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn request_many<Q: Serialize, A: DeserializeOwned + 'static>(
        &self,
        exchange: &str,
        routing_key: &str,
        request: &Q,
        count: usize,
        options: impl Into<CallOptions>,
    ) -> Result<Answers<A>, RequestError> {
        if count == 0 {
            let error = Error::invalid("count", 0, "asks for no answer; use 1 or more");
            return Err(RequestError::NotSent(error));
        }
        let call = json_call(exchange, routing_key, request)?;
        Answers::gather(self, call, count, options.into()).await
    }
}

/// Looking after it.
impl Requester {
    /// Returns the counts since the requester was made.
    #[must_use]
    pub fn stats(&self) -> RequesterStats {
        self.shared.pending.stats()
    }

    /// Returns the name of the reply queue at the moment; none while there is no queue.
    #[must_use]
    pub fn reply_queue(&self) -> Option<String> {
        match &*self.shared.address.borrow() {
            Address::At { queue, .. } => Some(queue.to_string()),
            Address::Rebuilding | Address::Closed => None,
        }
    }

    /// Fails every call in flight with [`RequestError::Closed`] and deletes the reply queue.
    ///
    /// Every clone is closed with it. Closing twice is harmless. Dropping the future leaves the
    /// rest to the background.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        let mut ended = self.shared.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

/// A call that is entered and composed, and the receiving end of its replies.
pub(super) struct Entered<R> {
    pub(super) in_flight: InFlight,
    pub(super) replies: R,
    pub(super) message: Outgoing,
    pub(super) deadline: Instant,
}

impl Requester {
    /// Enters the call and publishes the request.
    async fn fly(&self, call: Call<'_>, options: CallOptions) -> Result<Flight, RequestError> {
        let timeout = options.time_limit();
        let entered = self.enter(&call, options, Pending::enter_one).await?;
        let Entered { in_flight, mut replies, message, deadline } = entered;
        let publishing = self.publish(message, deadline);
        // An answer can be here before the broker's confirm; then the request was sent.
        let early = tokio::select! {
            biased;
            reply = &mut replies => Some(reply),
            published = publishing => match published {
                Ok(()) => None,
                Err(error) => return Err(in_flight.fail(RequestError::of_publish(error, timeout))),
            },
        };
        let requester = self.keep_alive();
        Ok(Flight { place: in_flight, replies, early, deadline, timeout, _requester: requester })
    }

    /// Publishes within what is left of the call's time.
    pub(super) async fn publish(&self, message: Outgoing, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.shared.core.publish(message, left).await
    }

    /// Enters a call under a reply address that is good at the moment of entering: if the queue is
    /// lost later, the call is among those that are failed.
    pub(super) async fn enter<R>(
        &self,
        call: &Call<'_>,
        options: CallOptions,
        enter: impl Fn(&Arc<Pending>, &str, u64) -> (InFlight, R),
    ) -> Result<Entered<R>, RequestError> {
        options.check().map_err(RequestError::NotSent)?;
        let deadline = deadline(options.time_limit());
        let id = Uuid::new_v4().to_string();
        loop {
            let (queue, incarnation) = self.reply_address(deadline).await?;
            let (in_flight, replies) = enter(&self.shared.pending, &id, incarnation);
            let address = Address::At { queue, incarnation };
            if *self.shared.address.borrow() != address {
                in_flight.withdraw();
                continue;
            }
            let Address::At { queue, .. } = address else { continue };
            let span = call.span(&id);
            let draft = options.draft(call, &id, &queue);
            // Composed within the span, which so becomes the cause that the request names.
            let message = span.in_scope(|| compose(&self.shared.core, draft));
            let in_flight = in_flight.in_span(span);
            let message = match message {
                Ok(message) => message,
                Err(error) => return Err(in_flight.fail(RequestError::NotSent(error))),
            };
            return Ok(Entered { in_flight, replies, message, deadline });
        }
    }

    /// The reply address, waited for where the queue is being made again.
    async fn reply_address(&self, deadline: Instant) -> Result<(Arc<str>, u64), RequestError> {
        let read = |address: &Address| match address {
            Address::At { queue, incarnation } => Some(Ok((Arc::clone(queue), *incarnation))),
            Address::Rebuilding => None,
            Address::Closed => Some(Err(RequestError::Closed)),
        };
        if self.shared.stop.is_cancelled() {
            return Err(RequestError::Closed);
        }
        if let Some(known) = read(&self.shared.address.borrow()) {
            return known;
        }
        let started = Instant::now();
        let mut address = self.shared.address.clone();
        let known = address.wait_for(|address| *address != Address::Rebuilding);
        match timeout_at(deadline, known).await {
            Ok(Ok(address)) => read(&address).unwrap_or(Err(RequestError::Closed)),
            Ok(Err(_)) => Err(RequestError::Closed),
            Err(_) => {
                let waited = started.elapsed();
                Err(RequestError::NotSent(Error::Disconnected { waited }))
            }
        }
    }

    pub(super) fn keep_alive(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

/// The receiving ends of the two kinds of call.
pub(super) type OneReply = oneshot::Receiver<Reply>;
pub(super) type ManyReplies = mpsc::Receiver<Reply>;

fn json_call<'a, Q: Serialize>(
    exchange: &'a str,
    routing_key: &'a str,
    request: &Q,
) -> Result<Call<'a>, RequestError> {
    let content_type = "application/json";
    match JsonCodec.encode(request) {
        Ok(body) => Ok(Call { exchange, routing_key, content_type, body }),
        Err(source) => Err(RequestError::NotSent(Error::Codec {
            action: "encode",
            content_type: content_type.to_owned(),
            source,
        })),
    }
}
