//! The reply queue, its name and its consumer, kept up as one unit.
//!
//! The queue outlives a lost connection: its consumer comes back to it, and calls in flight get
//! the answers that waited there. A queue that is gone took its answers with it. Then every call
//! that waits for one is failed, and a new queue takes its place under a new name, so that nothing
//! addressed to the old one is ever awaited again.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::join_all};
use tokio::{
    sync::watch,
    time::{timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::pending::{Lost, Pending};
use crate::{
    backoff::Backoff,
    clock::deadline,
    connection::Core,
    error::{Error, Result, with_causes},
    message::{Envelope, Headers, Received},
    topology::standard,
    transport::{Delivery, Settle, Subscribe, Subscription},
};

/// Replies that the broker sends ahead of their acknowledgement.
const PREFETCH: u16 = 1000;

/// Replies that are acknowledged together.
const AT_ONCE: usize = 128;

/// How long a close spends on the broker.
const GOODBYE: Duration = Duration::from_millis(500);

/// Where replies go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// To this queue, the requester's first (0) or a later one.
    At { queue: Arc<str>, incarnation: u64 },
    /// Nowhere: the queue was lost, and the next one is being made.
    Rebuilding,
    /// Nowhere, for good.
    Closed,
}

/// Takes replies out of the reply queue and gives them to their calls.
pub(super) struct Replies {
    core: Arc<Core>,
    pending: Arc<Pending>,
    address: watch::Sender<Address>,
    stop: CancellationToken,
    queue: Arc<str>,
    incarnation: u64,
    /// Whether the queue of this name was declared. Once it was, it is never declared again: that
    /// would hide its loss.
    declared: bool,
}

impl Replies {
    pub(super) fn new(core: Arc<Core>, pending: Arc<Pending>, stop: CancellationToken) -> Self {
        Self {
            core,
            pending,
            address: watch::Sender::new(Address::Rebuilding),
            stop,
            queue: standard::reply_queue_name().into(),
            incarnation: 0,
            declared: false,
        }
    }

    pub(super) fn address(&self) -> watch::Receiver<Address> {
        self.address.subscribe()
    }

    /// Declares the queue where it is new, subscribes, and makes its name known.
    pub(super) async fn subscribe(&mut self) -> Result<Subscription> {
        let limit = self.core.options().confirm_timeout;
        let deadline = deadline(limit);
        let link = self.core.consume_link(deadline).await?;
        let subscribing = async {
            if !self.declared {
                link.declare(&standard::reply_queue(&self.queue)).await?;
                self.declared = true;
            }
            link.subscribe(Subscribe {
                queue: self.queue.to_string(),
                tag: format!("{}-{}", self.core.options().client_name, Uuid::new_v4()),
                prefetch: PREFETCH,
                exclusive: false,
                arguments: Headers::new(),
            })
            .await
        };
        let subscription = timeout_at(deadline, subscribing).await.unwrap_or_else(|_| {
            Err(Error::Interrupted { reason: format!("no answer within {limit:?}") })
        })?;
        let (queue, incarnation) = (Arc::clone(&self.queue), self.incarnation);
        self.address.send_replace(Address::At { queue, incarnation });
        Ok(subscription)
    }

    /// Hands out replies until the requester is closed.
    pub(super) async fn run(mut self, first: Subscription) {
        let mut next = Some(first);
        while let Some(subscription) = next {
            next = match self.hand_out(subscription).await {
                Some(loss) => self.subscribe_again(loss).await,
                None => None,
            };
        }
        // In this order: a call that is entered after the failing sees the address.
        self.address.send_replace(Address::Closed);
        self.pending.fail(u64::MAX, Lost::Closed);
        self.delete_queue().await;
    }

    /// Hands out replies until the subscription is lost, with the reason, or the requester closed.
    async fn hand_out(&self, subscription: Subscription) -> Option<Error> {
        let Subscription { deliveries, control } = subscription;
        let mut deliveries = deliveries.ready_chunks(AT_ONCE);
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    // Its queue is deleted next; what was not acknowledged goes with it.
                    let _ = timeout(GOODBYE, control.close()).await;
                    return None;
                }
                chunk = deliveries.next() => chunk,
            };
            let ended = || Error::Interrupted { reason: "the stream ended".into() };
            let Some(chunk) = chunk else { return Some(ended()) };
            let mut settles = Vec::with_capacity(chunk.len());
            let mut loss = None;
            for delivery in chunk {
                match delivery {
                    Ok(delivery) => settles.push(self.complete(delivery)),
                    Err(error) => loss = Some(error),
                }
            }
            if loss.is_some() {
                return loss;
            }
            // A reply whose acknowledgement fails comes again and finds no call: unmatched.
            let acks = join_all(settles.into_iter().map(|settle: Box<dyn Settle>| settle.ack()));
            tokio::select! {
                _ = acks => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    fn complete(&self, delivery: Delivery) -> Box<dyn Settle> {
        let Delivery { exchange, routing_key, redelivered, properties, body, settle } = delivery;
        let now_ms = self.core.clock().now_ms();
        let envelope = Envelope::from_properties(&properties, &routing_key, now_ms);
        let queue = self.queue.to_string();
        self.pending.complete(Arc::new(Received {
            queue,
            exchange,
            routing_key,
            redelivered,
            envelope,
            properties,
            body,
            span: tracing::Span::none(),
        }));
        settle
    }

    /// Comes back to the queue, or replaces it where it is gone; none if the requester is closed.
    async fn subscribe_again(&mut self, loss: Error) -> Option<Subscription> {
        let stop = self.stop.clone();
        let mut backoff =
            Backoff::new(Duration::from_millis(100), self.core.options().reconnect_cap);
        let subscribing = async {
            let mut loss = loss;
            let mut is_first = true;
            loop {
                match loss {
                    Error::Closed => return None,
                    // At once, so that calls are soon answered again; a second time means trouble.
                    Error::NotFound { .. } if self.declared => {
                        self.replace_queue();
                        if !is_first {
                            tokio::time::sleep(backoff.next()).await;
                        }
                    }
                    _ => tokio::time::sleep(backoff.next()).await,
                }
                is_first = false;
                match self.subscribe().await {
                    Ok(subscription) => return Some(subscription),
                    Err(error) => {
                        let reason = with_causes(&error);
                        tracing::warn!(queue = &*self.queue, reason, "no replies, trying on");
                        loss = error;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => None,
            subscription = subscribing => subscription,
        }
    }

    /// Fails every call whose reply was to come to the lost queue, and takes another name.
    fn replace_queue(&mut self) {
        // In this order: a call that is entered after the failing sees the address.
        self.address.send_replace(Address::Rebuilding);
        let failed = self.pending.fail(self.incarnation, Lost::ReplyQueue);
        tracing::warn!(queue = &*self.queue, failed, "the reply queue is gone; making another");
        self.queue = standard::reply_queue_name().into();
        self.incarnation += 1;
        self.declared = false;
    }

    /// Deletes the queue, so that responders hear at once that nobody waits. Where that fails, it
    /// expires.
    async fn delete_queue(&self) {
        let _ = timeout(GOODBYE, self.core.delete_queue(&self.queue)).await;
    }
}
