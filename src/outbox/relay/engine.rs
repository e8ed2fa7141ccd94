//! One pass: claim a batch, publish it, mark it.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::Semaphore,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    OutboxTarget, RelayReport,
    lanes::{Lane, Unanswered, Waiting, lanes},
    options::RelayOptions,
    outcome::{Outcome, Outcomes, judge},
};
use crate::{
    backoff::Backoff,
    error::{Error, Result, with_causes},
    outbox::{ClaimedBatch, ClaimedRecord, FailedPublish, OutboxStore},
};

/// How long one call of the store may take: a half-open connection would hold it for ever.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often the finished records of a batch are marked while others of it are still on their way.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// How often a mark is tried again once the relay has been told to stop.
const TRIES_WHEN_STOPPING: u32 = 5;

/// What the passes of one relay share.
pub(super) struct Engine<T, S> {
    pub(super) target: T,
    pub(super) store: Arc<S>,
    pub(super) options: RelayOptions,
    pub(super) stopping: CancellationToken,
    /// Publishes in flight.
    permits: Semaphore,
    unanswered: Arc<Unanswered>,
}

/// A claim of a relay and the local time at which its lease ends, at the latest.
///
/// The time is taken before the claim is sent, so that it is never after the database's.
pub(super) struct Leased {
    pub(super) batch: ClaimedBatch,
    ends: Instant,
    waiting: Vec<Waiting>,
}

/// Given back because it was not tried.
const UNTRIED: Outcome = Outcome::Release { reason: None, delay: Duration::ZERO };

/// What the publishes of one batch share.
struct BatchState {
    token: Uuid,
    ends: Mutex<Instant>,
    /// The broker is not reachable: what has not started need not be tried.
    outage: AtomicBool,
}

impl BatchState {
    fn ends(&self) -> Instant {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_ends(&self, at: Instant) {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

impl<T: OutboxTarget, S: OutboxStore> Engine<T, S> {
    pub(super) fn new(target: T, store: Arc<S>, options: RelayOptions) -> Self {
        Self {
            target,
            store,
            permits: Semaphore::new(options.concurrency),
            options,
            stopping: CancellationToken::new(),
            unanswered: Arc::default(),
        }
    }

    /// Claims and publishes one batch.
    pub(super) async fn pass(self: Arc<Self>) -> Result<RelayReport> {
        let leased = self.claim(self.options.batch_size).await?;
        Ok(self.publish(leased).await)
    }

    pub(super) async fn claim(&self, size: u32) -> Result<Leased> {
        let ends = Instant::now() + self.options.lease;
        let batch = in_time(self.store.claim_batch(size, self.options.lease)).await?;
        let waiting = batch.records().iter().map(|_| Waiting::new(&self.unanswered)).collect();
        Ok(Leased { batch, ends, waiting })
    }

    /// Whether another batch may be claimed while others are under way: as many records again as
    /// are published at a time, so that publishing never waits for a claim.
    pub(super) fn has_room(&self) -> bool {
        let batch = usize::try_from(self.options.batch_size).unwrap_or(usize::MAX);
        let limit = self.options.concurrency.max(batch);
        self.unanswered.count() < limit
    }

    /// Waits for the next answer of the broker.
    pub(super) async fn answered(&self) {
        self.unanswered.answered().await;
    }

    /// Publishes a batch and marks it: in one statement, or in several if some records are slow.
    pub(super) async fn publish(self: Arc<Self>, leased: Leased) -> RelayReport {
        let state = Arc::new(BatchState {
            token: leased.batch.token(),
            ends: Mutex::new(leased.ends),
            outage: AtomicBool::new(false),
        });
        let records = leased.batch.into_records();
        let mut report = RelayReport { claimed: count(records.len()), ..RelayReport::default() };
        let mut unmarked: Vec<i64> = records.iter().map(ClaimedRecord::seq).collect();
        let step = |next, rest| Arc::clone(&self).step(next, rest, Arc::clone(&state));
        let lanes = lanes(records.into_iter().zip(leased.waiting));
        let mut steps: FuturesUnordered<_> = lanes
            .into_iter()
            .filter_map(|mut lane| lane.pop_front().map(|first| step(first, lane)))
            .collect();
        let mut outcomes = Outcomes::default();
        let mut flush = ticker(FLUSH_INTERVAL);
        let mut renewal = ticker(self.options.lease / 3);
        loop {
            tokio::select! {
                biased;
                _ = renewal.tick() => self.renew(&state, &unmarked, &mut report).await,
                _ = flush.tick(), if !outcomes.is_empty() => {
                    self.mark(&state, &mut outcomes, &mut unmarked, &mut report).await;
                }
                done = steps.next() => {
                    let Some((seq, outcome, mut rest)) = done else { break };
                    let goes_on = outcome == Outcome::Published;
                    outcomes.add(seq, outcome);
                    match rest.pop_front() {
                        Some(next) if goes_on => steps.push(step(next, rest)),
                        // They may not overtake it; whoever claims it next takes them as well.
                        Some(next) => [next].iter().chain(&rest).for_each(|(record, _)| {
                            outcomes.add(record.seq(), UNTRIED);
                        }),
                        None => {}
                    }
                }
            }
        }
        self.mark(&state, &mut outcomes, &mut unmarked, &mut report).await;
        report
    }

    /// Publishes one record of a lane and returns what became of it, with the rest of the lane.
    async fn step(
        self: Arc<Self>,
        (record, _waiting): (ClaimedRecord, Waiting),
        rest: Lane,
        state: Arc<BatchState>,
    ) -> (i64, Outcome, Lane) {
        let since = Instant::now();
        let outcome = self.attempt(&record, &state).await;
        outcome.count(record.age() + since.elapsed());
        (record.seq(), outcome, rest)
    }

    /// Publishes one record, unless its lease may be over or it cannot be published at all.
    async fn attempt(&self, record: &ClaimedRecord, state: &BatchState) -> Outcome {
        // The semaphore is never closed; without a permit nothing would be lost but the limit.
        let _permit = self.permits.acquire().await;
        if let Some(reason) = record.damage() {
            judge(record, reason, &self.options)
        } else if record.attempts() >= self.options.max_attempts {
            judge(record, "its attempts were spent", &self.options)
        } else if state.outage.load(Ordering::Relaxed) || Instant::now() >= state.ends() {
            UNTRIED
        } else {
            self.publish_one(record, state).await
        }
    }

    async fn publish_one(&self, record: &ClaimedRecord, state: &BatchState) -> Outcome {
        let publish = AssertUnwindSafe(async { self.target.publish(record.record()).await });
        match publish.catch_unwind().await {
            Ok(Ok(())) => Outcome::Published,
            Ok(Err(error)) if error.concerns_the_message() => {
                judge(record, &with_causes(&error), &self.options)
            }
            Ok(Err(error)) => {
                // A confirm that never comes may be one queue's trouble; the record steps back,
                // the others go on.
                let alone = matches!(error, Error::ConfirmTimeout { .. });
                state.outage.fetch_or(!alone, Ordering::Relaxed);
                let delay = if alone { Duration::from_secs(1) } else { Duration::ZERO };
                Outcome::Release { reason: Some(with_causes(&error)), delay }
            }
            Err(_) => judge(record, "publishing it panicked", &self.options),
        }
    }

    /// A relay that finds some of its records taken over stops with all of them: it could no longer
    /// tell whether another one is at work on an earlier record of a key.
    async fn renew(&self, state: &BatchState, seqs: &[i64], report: &mut RelayReport) {
        let ends = Instant::now() + self.options.lease;
        match in_time(self.store.renew(state.token, seqs, self.options.lease)).await {
            Ok(renewed) if renewed == count(seqs.len()) => state.set_ends(ends),
            Ok(_) => state.set_ends(Instant::now()),
            Err(error) => report.last_error = Some(with_causes(&error)),
        }
    }

    /// Writes the outcomes down, trying again until the lease is over.
    async fn mark(
        &self,
        state: &BatchState,
        outcomes: &mut Outcomes,
        unmarked: &mut Vec<i64>,
        report: &mut RelayReport,
    ) {
        let mut done = std::mem::take(outcomes);
        let marked: HashSet<i64> = done.seqs().collect();
        unmarked.retain(|seq| !marked.contains(seq));
        report.last_error = done.last_error.take().or(report.last_error.take());
        if !done.published.is_empty() {
            let marked = self.persist(state, report, Mark::Published(&done.published)).await;
            report.published += marked;
            report.lost += count(done.published.len()).saturating_sub(marked);
        }
        if !done.failed.is_empty() {
            let marked = self.persist(state, report, Mark::Failed(&done.failed)).await;
            let retired = done.failed.iter().filter(|f| f.retry_after().is_none()).count();
            report.failed += marked;
            report.retired += count(retired).min(marked);
            report.lost += count(done.failed.len()).saturating_sub(marked);
        }
        for (delay, seqs) in &done.released {
            // Best effort: an unreleased record comes back when its lease ends.
            match in_time(self.store.release(state.token, seqs, *delay)).await {
                Ok(released) => report.released += released,
                Err(error) => report.last_error = Some(with_causes(&error)),
            }
        }
    }

    async fn persist(&self, state: &BatchState, report: &mut RelayReport, mark: Mark<'_>) -> u64 {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut tries_left = TRIES_WHEN_STOPPING;
        loop {
            let written = match mark {
                Mark::Published(seqs) => {
                    in_time(self.store.mark_published(state.token, seqs)).await
                }
                Mark::Failed(failures) => {
                    in_time(self.store.mark_failed(state.token, failures)).await
                }
            };
            match written {
                Ok(changed) => return changed,
                Err(error) => report.last_error = Some(with_causes(&error)),
            }
            if self.stopping.is_cancelled() {
                tries_left = tries_left.saturating_sub(1);
            }
            if tries_left == 0 || Instant::now() >= state.ends() {
                return 0;
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }
}

/// A set of rows to be marked.
#[derive(Clone, Copy)]
enum Mark<'a> {
    Published(&'a [i64]),
    Failed(&'a [FailedPublish]),
}

/// Bounds one call of the store.
pub(super) async fn in_time<R>(work: impl Future<Output = Result<R>>) -> Result<R> {
    match tokio::time::timeout(STORE_TIMEOUT, work).await {
        Ok(result) => result,
        Err(elapsed) => Err(Error::Store { action: "answer in time", source: elapsed.into() }),
    }
}

/// A timer whose first tick is one period away.
fn ticker(period: Duration) -> tokio::time::Interval {
    let period = period.max(Duration::from_millis(1));
    let mut ticker = tokio::time::interval_at(Instant::now() + period, period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
