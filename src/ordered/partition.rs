//! Consuming one partition in order.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    time::{timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    failure::{OnFailure, Then},
    handle::{Counters, PartitionState},
    lanes::Lanes,
};
use crate::{
    backoff::Backoff,
    clock::deadline,
    connection::Core,
    consume::{HandlerResult, Outcome, catching_panics, dead_letter, decode, park, receive},
    error::{Error, Result, with_causes},
    message::{Decoder, Headers, Message, Received},
    telemetry::{ConsumerMetrics, Settled, on_behalf_of, process_span},
    topology::Topology,
    transport::{Delivery, Settle, Subscribe, Subscription},
};

/// How long a close of a channel may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How long a message waits whose copy did not land.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) type Handle<T> = dyn Fn(Message<T>) -> BoxFuture<'static, HandlerResult> + Send + Sync;
pub(super) type KeyOf<T> = dyn Fn(&T) -> String + Send + Sync;

/// What all partitions of a queue share.
pub(super) struct Shared<T> {
    pub(super) core: Arc<Core>,
    pub(super) decoder: Arc<dyn Decoder<T>>,
    pub(super) key_of: Arc<KeyOf<T>>,
    pub(super) handle: Box<Handle<T>>,
    pub(super) on_failure: OnFailure,
    pub(super) prefetch: u16,
    pub(super) lanes: usize,
    pub(super) stop: CancellationToken,
}

/// One partition.
pub(super) struct Partition<T> {
    pub(super) shared: Arc<Shared<T>>,
    pub(super) queue: String,
    /// Declared before each subscription.
    pub(super) topology: Topology,
    pub(super) counters: Arc<Counters>,
    pub(super) metrics: ConsumerMetrics,
    pub(super) state: watch::Sender<PartitionState>,
    /// Counts the calls of `resume`.
    pub(super) resumed: watch::Receiver<u64>,
}

/// Why a subscription ended.
enum Ended {
    Stopped,
    Lost(Error),
    Halted(String),
}

/// How the handling of one message ended.
enum Verdict {
    /// It left its queue.
    Settled,
    /// It stays where it is, for the reason of the halt.
    Halts(String),
    /// It stays where it is: the consumer stops, or the channel is gone.
    Left,
}

/// A message at hand. One that cannot be decoded has a lane of its own.
struct Job<T> {
    received: Arc<Received>,
    payload: std::result::Result<T, Outcome>,
    settle: Box<dyn Settle>,
}

impl<T: Clone + Send + Sync + 'static> Partition<T> {
    /// Subscribes once, declaring what is missing.
    pub(super) async fn subscribe(&self) -> Result<Subscription> {
        let core = &self.shared.core;
        core.declare(&self.topology).await?;
        let limit = core.options().confirm_timeout;
        let deadline = deadline(limit);
        let link = core.consume_link(deadline).await?;
        let request = Subscribe {
            queue: self.queue.clone(),
            tag: format!("{}-{}", core.options().client_name, Uuid::new_v4()),
            prefetch: self.shared.prefetch,
            exclusive: false,
            arguments: Headers::new(),
        };
        timeout_at(deadline, link.subscribe(request)).await.unwrap_or_else(|_| {
            Err(Error::Interrupted { reason: format!("no answer within {limit:?}") })
        })
    }

    /// Consumes until stopped; returns how many handlers had to be abandoned.
    pub(super) async fn run(mut self, first: Subscription) -> usize {
        let mut backoff =
            Backoff::new(Duration::from_millis(100), self.shared.core.options().reconnect_cap);
        let mut next = Some(first);
        let mut abandoned = 0;
        while let Some(subscription) = next {
            self.state.send_replace(PartitionState::Running);
            let ended;
            (ended, abandoned) = self.consume(subscription).await;
            next = match ended {
                Ended::Stopped => None,
                Ended::Lost(error) => {
                    self.note_loss(&error);
                    self.subscribe_again(&mut backoff).await
                }
                Ended::Halted(reason) => {
                    let queue = self.queue.as_str();
                    tracing::error!(queue, reason, "a partition is halted until it is resumed");
                    self.state.send_replace(PartitionState::Halted { reason });
                    self.until_resumed().await;
                    backoff.reset();
                    self.subscribe_again(&mut backoff).await
                }
            };
        }
        self.state.send_replace(PartitionState::Closed);
        abandoned
    }

    /// Handles deliveries in order until the subscription ends, and then closes the channel: what
    /// was not settled goes back to its place, all of it at once.
    ///
    /// Never a requeue of single messages: the broker would hand the next ones to another consumer
    /// while this one still holds earlier ones.
    async fn consume(&self, subscription: Subscription) -> (Ended, usize) {
        let Subscription { mut deliveries, control } = subscription;
        let mut lanes = Lanes::new(self.shared.lanes);
        let mut running = FuturesUnordered::new();
        let mut ended: Option<Ended> = None;
        let mut finish_by = None;
        loop {
            while ended.is_none() {
                let Some((key, job)) = lanes.start() else { break };
                running.push(self.handle(job).map(move |verdict| (key, verdict)));
            }
            if ended.is_some() && running.is_empty() {
                break;
            }
            let patience = async {
                match finish_by {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // First: a handler that ends at the same moment must not be followed by another.
                () = self.shared.stop.cancelled(), if finish_by.is_none() => {
                    finish_by = Some(deadline(self.shared.core.options().shutdown_timeout));
                    ended = Some(Ended::Stopped);
                }
                Some((key, verdict)) = running.next() => {
                    lanes.end(&key);
                    match verdict {
                        Verdict::Settled => {}
                        Verdict::Halts(reason) => ended = Some(Ended::Halted(reason)),
                        // Its key may not go on; the end of the subscription is on its way.
                        Verdict::Left => {
                            ended.get_or_insert(Ended::Lost(gone()));
                        }
                    }
                }
                delivery = deliveries.next(), if ended.is_none() => match delivery {
                    Some(Ok(_)) if !control.is_open() => {}
                    Some(Ok(delivery)) => {
                        let (key, job) = self.take(delivery);
                        lanes.add(key, job);
                    }
                    Some(Err(error)) => ended = Some(Ended::Lost(error)),
                    None => ended = Some(Ended::Lost(gone())),
                },
                () = patience => break,
            }
        }
        let abandoned = running.len();
        if abandoned > 0 {
            let queue = self.queue.as_str();
            tracing::error!(queue, abandoned, "handlers did not finish in time");
            self.shared.core.abandon(abandoned);
        }
        drop(running);
        let _ = timeout(CLOSE_WITHIN, control.close()).await;
        (ended.unwrap_or(Ended::Stopped), abandoned)
    }

    /// Reads a delivery and finds its key.
    fn take(&self, delivery: Delivery) -> (String, Job<T>) {
        let (mut received, settle) = receive(&self.shared.core, &self.queue, delivery);
        received.span = process_span(&self.queue, &received.routing_key, &received.envelope);
        let payload = decode(&*self.shared.decoder, &received);
        // The application's code: a panic in it is the message's failure, not the partition's.
        let key = payload.as_ref().ok().and_then(|payload| {
            let key_of = std::panic::AssertUnwindSafe(|| (self.shared.key_of)(payload));
            std::panic::catch_unwind(key_of).ok()
        });
        let key = key.unwrap_or_default();
        (key, Job { received: Arc::new(received), payload, settle })
    }

    async fn handle(&self, job: Job<T>) -> Verdict {
        let Job { received, payload, settle } = job;
        let watched = self.metrics.arrived(&received.envelope, &received.span);
        let (verdict, settled) =
            on_behalf_of(&received, self.handle_in_place(&received, payload, settle)).await;
        watched.ended(settled);
        verdict
    }

    /// Handles a message, again and again where the policy says so, without letting go of it.
    async fn handle_in_place(
        &self,
        received: &Arc<Received>,
        payload: std::result::Result<T, Outcome>,
        settle: Box<dyn Settle>,
    ) -> (Verdict, Settled) {
        let mut attempt = 1;
        loop {
            let outcome = match &payload {
                Err(undecodable) => undecodable.clone(),
                Ok(payload) => {
                    let message = Message::new(payload.clone(), Arc::clone(received));
                    catching_panics(async {
                        match (self.shared.handle)(message).await {
                            Ok(()) => Outcome::Ack,
                            Err(error) => error.into_outcome(),
                        }
                    })
                    .await
                }
            };
            let reason = match outcome {
                Outcome::Ack => {
                    self.counters.handled.add();
                    return self.ack(settle, Settled::Acked).await;
                }
                Outcome::Reject(reason) => return self.skip(received, &reason, settle).await,
                Outcome::Park(reason) | Outcome::Undecodable(reason) => {
                    return self.park(received, &reason, settle).await;
                }
                Outcome::Retry { reason, .. } | Outcome::Panic(reason) => reason,
                Outcome::Defer(delay) => format!("the handler wants it again after {delay:?}"),
            };
            match self.shared.on_failure.after(attempt) {
                Ok(delay) => {
                    self.counters.retried.add();
                    if !self.wait(delay).await || !settle.is_live() {
                        return (Verdict::Left, Settled::TooLate);
                    }
                    attempt += 1;
                }
                Err(Then::Skip) => return self.skip(received, &reason, settle).await,
                Err(Then::Stop) => {
                    let id = received.envelope.id();
                    let reason = format!("message {id}: {reason}");
                    return (Verdict::Halts(reason), Settled::Returned);
                }
            }
        }
    }

    async fn skip(
        &self,
        received: &Received,
        reason: &str,
        settle: Box<dyn Settle>,
    ) -> (Verdict, Settled) {
        let set_aside = || dead_letter(&self.shared.core, received, reason).boxed();
        if !self.insist(&*settle, set_aside).await {
            return (Verdict::Left, Settled::TooLate);
        }
        self.counters.skipped.add();
        self.ack(settle, Settled::DeadLettered).await
    }

    async fn park(
        &self,
        received: &Received,
        reason: &str,
        settle: Box<dyn Settle>,
    ) -> (Verdict, Settled) {
        let set_aside = || park(&self.shared.core, received, reason).boxed();
        if !self.insist(&*settle, set_aside).await {
            return (Verdict::Left, Settled::TooLate);
        }
        self.counters.parked.add();
        self.ack(settle, Settled::Parked).await
    }

    /// Publishes a copy until it lands; false if the message is no longer this consumer's.
    async fn insist<'a>(
        &self,
        settle: &dyn Settle,
        copy: impl Fn() -> BoxFuture<'a, Result<()>>,
    ) -> bool {
        while settle.is_live() {
            match copy().await {
                Ok(()) => return true,
                Err(error) => {
                    let (queue, error) = (self.queue.as_str(), with_causes(&error));
                    tracing::error!(queue, error, "a copy did not land; trying again");
                }
            }
            if !self.wait(AGAIN_AFTER).await {
                return false;
            }
        }
        false
    }

    async fn ack(&self, settle: Box<dyn Settle>, settled: Settled) -> (Verdict, Settled) {
        match settle.ack().await {
            Ok(()) => (Verdict::Settled, settled),
            Err(_) => (Verdict::Left, Settled::TooLate),
        }
    }

    /// Waits; false if the consumer stops first.
    async fn wait(&self, delay: Duration) -> bool {
        self.shared.stop.run_until_cancelled(tokio::time::sleep(delay)).await.is_some()
    }

    async fn subscribe_again(&self, backoff: &mut Backoff) -> Option<Subscription> {
        while self.wait(backoff.next()).await {
            let subscribing = self.shared.stop.run_until_cancelled(self.subscribe()).await?;
            match subscribing {
                Ok(subscription) => return Some(subscription),
                Err(Error::Closed) => return None,
                Err(error) => self.note_loss(&error),
            }
        }
        None
    }

    fn note_loss(&self, error: &Error) {
        let waiting = PartitionState::Waiting { reason: with_causes(error) };
        self.state.send_if_modified(|state| {
            let is_new = *state != waiting;
            if is_new {
                tracing::warn!(queue = self.queue, %error, "not consuming, trying on");
                *state = waiting;
            }
            is_new
        });
    }

    async fn until_resumed(&mut self) {
        let stop = self.shared.stop.clone();
        let _ = stop.run_until_cancelled(self.resumed.changed()).await;
    }
}

fn gone() -> Error {
    Error::Interrupted { reason: "the delivering channel is gone".into() }
}
