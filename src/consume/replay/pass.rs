//! One walk over a queue.

use std::{collections::HashSet, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use super::{
    super::worker::receive,
    ReplayCandidate, ReplayEnd, ReplayProgress, ReplayReport,
    builder::{OnProgress, Plan},
};
use crate::{
    error::{Error, Result, cut, with_causes},
    idempotency::Claim,
    message::{Envelope, Properties, ReplayStamp},
    transport::{Outgoing, Pull, Settle},
};

/// How long the broker may take to give back what is held. After that it happens by itself.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A walk over a queue from its head. What it takes and does not acknowledge is back in the queue
/// when its channel is closed: at the end, or in the background when the pass is dropped.
pub(super) struct Pass<'a> {
    plan: &'a Plan,
    pull: Box<dyn Pull>,
    started: DateTime<Utc>,
    /// None for a time that is too far away to be told.
    deadline: Option<Instant>,
    /// When the rate allows the next move; none if at once.
    next_move: Option<Instant>,
    /// The messages taken and not acknowledged. Only their number: the broker knows which.
    held: u64,
    /// The ids of the messages that were moved in the second in which the pass started. Stamps
    /// have whole seconds, so these could have been moved by an earlier pass as well.
    moved_at_start: HashSet<String>,
    done: ReplayProgress,
    /// Makes the close of the handle wait for the end of the pass.
    _running: TaskTrackerToken,
}

type Taken = (ReplayCandidate, Box<dyn Settle>);

impl<'a> Pass<'a> {
    pub(super) async fn open(plan: &'a Plan) -> Result<Self> {
        let core = &plan.core;
        if core.closing().is_cancelled() {
            return Err(Error::Closed);
        }
        let now = Instant::now();
        let running = core.tasks().token();
        if core.inspect(&plan.queue).await?.is_none() {
            return Err(Error::NotFound { reason: format!("no queue `{}`", plan.queue) });
        }
        let link = core.consume_link(now + core.options().confirm_timeout).await?;
        Ok(Self {
            pull: link.pull(&plan.queue).await?,
            started: core.clock().now(),
            deadline: plan.within.and_then(|limit| now.checked_add(limit)),
            next_move: None,
            held: 0,
            moved_at_start: HashSet::new(),
            done: ReplayProgress::default(),
            plan,
            _running: running,
        })
    }

    /// Looks at the first messages that are picked.
    pub(super) async fn preview(mut self, max: usize) -> Result<Vec<ReplayCandidate>> {
        let mut found = Vec::new();
        let mut failed = None;
        while found.len() < max {
            match self.take().await {
                Ok((candidate, _)) => {
                    self.held += 1;
                    if self.plan.picks(&candidate) {
                        found.push(candidate);
                    }
                }
                Err(ReplayEnd::Failed(error)) => failed = Some(error),
                Err(ReplayEnd::Cancelled) => failed = Some(Error::Closed),
                Err(_) => break,
            }
            if failed.is_some() {
                break;
            }
        }
        self.close().await;
        failed.map_or(Ok(found), Err)
    }

    /// Moves what is picked.
    pub(super) async fn run(
        mut self,
        target: &(String, String),
        mut on_progress: Option<OnProgress>,
    ) -> ReplayReport {
        let ended = loop {
            let before = self.done;
            let stepped = self.step(target).await;
            if self.done != before
                && let Some(call) = &mut on_progress
            {
                call(&self.done);
            }
            if let Err(ended) = stepped {
                break ended;
            }
        };
        let (queue, done) = (self.plan.queue.clone(), self.done);
        self.close().await;
        let (moved, skipped) = (done.moved, done.skipped + done.already_done);
        match &ended {
            ReplayEnd::Failed(error) => {
                tracing::error!(queue, moved, skipped, error = with_causes(error), "replay failed");
            }
            ended => tracing::info!(queue, moved, skipped, ?ended, "replay ended"),
        }
        ReplayReport { done, ended }
    }

    /// Looks at one message and does with it what it should.
    async fn step(&mut self, target: &(String, String)) -> Result<(), ReplayEnd> {
        if self.plan.limit.is_some_and(|limit| self.done.moved >= limit) {
            return Err(ReplayEnd::Limit);
        }
        // Before a message is taken, so that none is out of sight for the time of the wait.
        if let Some(at) = self.next_move.take() {
            in_time(self.deadline, self.plan.core.closing(), sleep_until(at)).await?;
        }
        let (candidate, settle) = self.take().await?;
        self.held += 1;
        if self.was_moved_before(&candidate) {
            return Err(ReplayEnd::FailedAgain { id: candidate.id().to_owned() });
        }
        if !self.plan.picks(&candidate) {
            self.done.skipped += 1;
        } else if self.plan.dry_run {
            self.done.moved += 1;
        } else if self.plan.is_done(&candidate).await.map_err(ReplayEnd::Failed)? {
            self.done.already_done += 1;
        } else {
            self.move_to(target, &candidate, settle).await.map_err(ReplayEnd::Failed)?;
        }
        Ok(())
    }

    /// Takes the next message, or says why the pass ends here.
    async fn take(&mut self) -> Result<Taken, ReplayEnd> {
        if self.held >= self.plan.hold_at_most {
            return Err(ReplayEnd::HoldLimit);
        }
        let core = &self.plan.core;
        let limit = core.options().confirm_timeout;
        let pulling = timeout(limit, self.pull.next());
        let pulled = in_time(self.deadline, core.closing(), pulling).await?;
        let pulled = pulled.unwrap_or_else(|_| {
            Err(Error::Interrupted { reason: format!("no answer within {limit:?}") })
        });
        let Some(delivery) = pulled.map_err(ReplayEnd::Failed)? else {
            return Err(ReplayEnd::Drained);
        };
        let (received, settle) = receive(core, &self.plan.queue, delivery);
        Ok((ReplayCandidate::new(received, core.clock().now()), settle))
    }

    /// Returns whether this pass moved the message, which then failed again: moving it once more
    /// would go on for ever.
    fn was_moved_before(&self, candidate: &ReplayCandidate) -> bool {
        let stamp = candidate.replayed().filter(|s| s.replayed_from() == self.plan.queue);
        let Some(at) = stamp.and_then(|stamp| stamp.replayed_at()) else { return false };
        let (at, started) = (at.timestamp(), self.started.timestamp());
        at > started || (at == started && self.moved_at_start.contains(candidate.id()))
    }

    async fn move_to(
        &mut self,
        (exchange, routing_key): &(String, String),
        candidate: &ReplayCandidate,
        settle: Box<dyn Settle>,
    ) -> Result<()> {
        let Plan { core, queue, attempts, .. } = self.plan;
        let original = candidate.received();
        // A clock that is set back must not make the messages of this pass look like older ones.
        let now = core.clock().now().max(self.started);
        let headers =
            ReplayStamp::stamp(original.properties.headers.clone(), queue, now, *attempts);
        let copy = Outgoing {
            exchange: exchange.clone(),
            routing_key: routing_key.clone(),
            mandatory: true,
            properties: Properties {
                headers,
                message_id: Some(cut(candidate.id(), 255)),
                persistent: true,
                ..original.properties.for_republish()
            },
            body: original.body.clone(),
        };
        core.publish_again(copy).await?;
        self.done.moved += 1;
        if now.timestamp() == self.started.timestamp() {
            self.moved_at_start.insert(candidate.id().to_owned());
        }
        if let Some(rate) = self.plan.rate {
            let pause = Duration::try_from_secs_f64(rate.recip()).unwrap_or(Duration::MAX);
            let now = Instant::now();
            self.next_move = Some(now.checked_add(pause).unwrap_or(now + FAR));
        }
        settle.ack().await?;
        self.held -= 1;
        Ok(())
    }

    /// Gives back what is held.
    async fn close(self) {
        if timeout(CLOSE_WITHIN, self.pull.close()).await.is_err() {
            tracing::warn!(queue = self.plan.queue, "the broker is slow to take messages back");
        }
    }
}

impl Plan {
    /// Makes the idempotency store forget the message; true if it stays as it was handled.
    async fn is_done(&self, candidate: &ReplayCandidate) -> Result<bool> {
        let Some(claims) = &self.claims else { return Ok(false) };
        if !Envelope::has_identity(&candidate.received().properties) {
            return Ok(false);
        }
        let (store, consumer, id) = (&claims.store, claims.consumer.as_str(), candidate.id());
        if self.even_if_done {
            store.forget(consumer, id).await?;
            return Ok(false);
        }
        // Claiming is the only way to ask; a claim that is given back leaves nothing behind.
        match store.try_claim(consumer, id).await? {
            Claim::AlreadyConfirmed => Ok(true),
            Claim::InProgress => Ok(false),
            Claim::Claimed(token) => {
                store.release(consumer, id, token).await?;
                Ok(false)
            }
        }
    }
}

/// So slow a rate moves one message.
const FAR: Duration = Duration::from_hours(24 * 365);

/// Does something unless the time is over or the handle is closed first.
async fn in_time<T>(
    deadline: Option<Instant>,
    closing: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, ReplayEnd> {
    if deadline.is_some_and(|at| at <= Instant::now()) {
        return Err(ReplayEnd::Deadline);
    }
    let over = async {
        match deadline {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = closing.cancelled() => Err(ReplayEnd::Cancelled),
        () = over => Err(ReplayEnd::Deadline),
        done = work => Ok(done),
    }
}
