//! Staying subscribed: over lost connections, closed channels, deleted queues, pauses and stops.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    consumer::{ConsumerState, Mode},
    places::Places,
    worker::Worker,
};
use crate::{
    backoff::Backoff,
    clock::deadline,
    error::{Error, Result, with_causes},
    topology::Topology,
    transport::{Delivery, Link, Subscribe, Subscription, SubscriptionControl},
};

/// A subscription that lived this long was a good one: the next loss starts with a short pause.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long the broker may take to answer a cancel and the stream to end after it.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// Runs one consumer.
pub(super) struct Runner {
    pub(super) worker: Arc<Worker>,
    pub(super) request: Subscribe,
    /// Declared before each subscription: the queues that failures go to.
    pub(super) topology: Topology,
    pub(super) places: Arc<Places>,
    pub(super) mode: watch::Receiver<Mode>,
    pub(super) state: watch::Sender<ConsumerState>,
    pub(super) stop: CancellationToken,
}

/// Why a subscription ended.
enum Ended {
    Lost(Error),
    Paused,
    Stopped,
}

/// The channel of a subscription, held by everything that may still settle on it.
type Channel = Arc<dyn SubscriptionControl>;

impl Runner {
    /// Declares what failures need and subscribes, once.
    pub(super) async fn subscribe(&self) -> Result<Subscription> {
        let core = &self.worker.core;
        core.declare(&self.topology).await?;
        let limit = core.options().confirm_timeout;
        let deadline = deadline(limit);
        let link = core.consume_link(deadline).await?;
        timeout_at(deadline, self.subscribe_on(&*link)).await.unwrap_or_else(|_| {
            Err(Error::Interrupted { reason: format!("no answer within {limit:?}") })
        })
    }

    async fn subscribe_on(&self, link: &dyn Link) -> Result<Subscription> {
        match link.subscribe(self.request.clone()).await {
            Err(error @ Error::NotFound { .. }) => {
                // A queue that was declared through this handle is ours to declare again.
                let core = &self.worker.core;
                let Some(queue) = core.declared().for_queue(&self.request.queue) else {
                    return Err(error);
                };
                core.declare(&queue).await?;
                link.subscribe(self.request.clone()).await
            }
            answer => answer,
        }
    }

    /// Consumes until stopped. Returns how many handlers had to be abandoned.
    pub(super) async fn run(mut self, first: Subscription) -> usize {
        let mut running = JoinSet::new();
        let mut backoff =
            Backoff::new(Duration::from_millis(100), self.worker.core.options().reconnect_cap);
        let mut last: Option<Channel> = None;
        let mut next = Some(first);
        let mut leaving = None;
        while let Some(mut subscription) = next {
            self.state.send_replace(ConsumerState::Running);
            last = Some(Arc::clone(&subscription.control));
            let since = Instant::now();
            next = match self.consume(&mut subscription, &mut running).await {
                Ended::Stopped => {
                    leaving = Some(goodbye(subscription));
                    None
                }
                Ended::Paused => {
                    goodbye(subscription).await;
                    self.state.send_replace(ConsumerState::Paused);
                    self.until_resumed().await;
                    self.subscribe_again(&mut backoff).await
                }
                Ended::Lost(error) => {
                    drop(subscription);
                    if since.elapsed() > STABLE_AFTER {
                        backoff.reset();
                    }
                    self.note_loss(&error);
                    self.subscribe_again(&mut backoff).await
                }
            };
        }
        // At the same time: a broker that does not answer the goodbye takes nothing off the
        // handlers' time, nor off what is reported about them.
        let left = async {
            if let Some(goodbye) = leaving {
                goodbye.await;
            }
        };
        let (abandoned, ()) = tokio::join!(self.drain(&mut running), left);
        if let Some(channel) = last {
            // Before the close is reported, so that abandoned messages are back in their queue.
            let _ = timeout(CANCEL_WITHIN, channel.close()).await;
        }
        self.state.send_replace(ConsumerState::Closed);
        abandoned
    }

    /// Hands deliveries to the worker until the subscription is lost, paused or stopped.
    async fn consume(
        &mut self,
        subscription: &mut Subscription,
        running: &mut JoinSet<()>,
    ) -> Ended {
        let Subscription { deliveries, control } = subscription;
        loop {
            // A place first, so that what cannot be handled yet stays in the stream, unstarted.
            let place = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ended::Stopped,
                _ = self.mode.wait_for(|mode| *mode == Mode::Paused) => return Ended::Paused,
                place = self.places.take() => place,
            };
            let delivery = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ended::Stopped,
                _ = self.mode.wait_for(|mode| *mode == Mode::Paused) => return Ended::Paused,
                delivery = deliveries.next() => delivery,
            };
            let delivery: Delivery = match delivery {
                Some(Ok(delivery)) => delivery,
                Some(Err(error)) => return Ended::Lost(error),
                None => {
                    return Ended::Lost(Error::Interrupted { reason: "the stream ended".into() });
                }
            };
            let Ok(place) = place else { return Ended::Stopped };
            if !control.is_open() {
                // Sent ahead before the channel was lost: the broker delivers it again, and to
                // handle this one too would only make a duplicate. The error is still to come.
                continue;
            }
            let worker = Arc::clone(&self.worker);
            // The channel stays open as long as a delivery of it is being handled.
            let channel = Arc::clone(control);
            running.spawn(async move {
                worker.handle(delivery, place).await;
                drop(channel);
            });
            while running.try_join_next().is_some() {}
        }
    }

    /// Subscribes with growing pauses until it works; none if the consumer stops first.
    async fn subscribe_again(&mut self, backoff: &mut Backoff) -> Option<Subscription> {
        let stop = self.stop.clone();
        let subscribing = async {
            loop {
                tokio::time::sleep(backoff.next()).await;
                match self.subscribe().await {
                    Ok(subscription) => {
                        tracing::info!(queue = self.request.queue, "consuming again");
                        return Some(subscription);
                    }
                    Err(Error::Closed) => return None,
                    Err(error) => self.note_loss(&error),
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => None,
            subscription = subscribing => subscription,
        }
    }

    /// Says once per reason why this consumer does not consume.
    fn note_loss(&self, error: &Error) {
        let waiting = ConsumerState::Waiting(with_causes(error));
        self.state.send_if_modified(|state| {
            let is_new = *state != waiting;
            if is_new {
                tracing::warn!(queue = self.request.queue, %error, "not consuming, trying on");
                *state = waiting;
            }
            is_new
        });
    }

    async fn until_resumed(&mut self) {
        let resumed = self.mode.wait_for(|mode| *mode == Mode::Running);
        tokio::select! {
            () = self.stop.cancelled() => {}
            _ = resumed => {}
        }
    }

    /// Waits for running handlers until the deadline, then abandons them.
    async fn drain(&self, running: &mut JoinSet<()>) -> usize {
        let limit = self.worker.core.options().shutdown_timeout;
        let all_done = async { while running.join_next().await.is_some() {} };
        if timeout(limit, all_done).await.is_ok() {
            return 0;
        }
        let abandoned = running.len();
        tracing::error!(queue = self.request.queue, abandoned, "handlers did not finish in time");
        running.shutdown().await;
        self.worker.core.abandon(abandoned);
        abandoned
    }
}

/// Takes no more, and gives back what was not started.
async fn goodbye(subscription: Subscription) {
    let Subscription { mut deliveries, control } = subscription;
    let leaving = async {
        control.cancel().await?;
        while let Some(unstarted) = deliveries.next().await {
            unstarted?.settle.nack(true).await?;
        }
        Ok::<_, Error>(())
    };
    // What could not be given back returns with the channel.
    let _ = timeout(CANCEL_WITHIN, leaving).await;
}
