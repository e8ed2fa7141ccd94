//! The loop of a started relay, and the tasks beside it.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};

use super::{
    OutboxTarget, RelayReport,
    engine::{Engine, in_time},
    report::Stats,
};
use crate::{
    backoff::Backoff,
    error::{Error, Result, with_causes},
    outbox::{ClaimedRecord, Notifier, OutboxStore},
};

/// How many records one purge statement deletes at most.
const PURGE_BATCH: u32 = 1000;

/// Runs the relay until it is told to stop; starts it again should it ever panic.
pub(super) async fn supervise<T: OutboxTarget, S: OutboxStore>(
    engine: Arc<Engine<T, S>>,
    stats: Arc<Stats>,
    notifier: Notifier,
) {
    let mut backoff = database_backoff();
    loop {
        let run = Run::new(Arc::clone(&engine), Arc::clone(&stats), notifier.clone());
        match tokio::spawn(run.work()).await {
            Err(error) if error.is_panic() => {
                tracing::error!(%error, "the outbox relay panicked; it starts again");
                stats.set_last_error(error.to_string());
                if sleep_or_stop(&engine.stopping, backoff.next()).await.is_break() {
                    return;
                }
            }
            _ => return,
        }
    }
}

struct Run<T, S> {
    engine: Arc<Engine<T, S>>,
    stats: Arc<Stats>,
    notifier: Notifier,
    batches: JoinSet<(RelayReport, bool)>,
    next_claim: Instant,
    database: Dependency,
    broker: Dependency,
}

impl<T: OutboxTarget, S: OutboxStore> Run<T, S> {
    fn new(engine: Arc<Engine<T, S>>, stats: Arc<Stats>, notifier: Notifier) -> Self {
        let depending = |what, backoff| Dependency::new(what, backoff, Arc::clone(&stats));
        Self {
            database: depending("the outbox's database", database_backoff()),
            broker: depending("the broker", broker_backoff()),
            engine,
            stats,
            notifier,
            batches: JoinSet::new(),
            next_claim: Instant::now(),
        }
    }

    async fn work(mut self) {
        let purge = tokio::spawn(purge(Arc::clone(&self.engine), Arc::clone(&self.stats)));
        let stopping = self.engine.stopping.clone();
        let (engine, notifier) = (Arc::clone(&self.engine), self.notifier.clone());
        if self.wait_for_table().await.is_continue() {
            while !stopping.is_cancelled() {
                let may_claim = self.may_claim();
                let woken = !self.database.is_down() && !self.broker.is_down();
                let due = due(self.next_claim, woken.then_some(&notifier));
                tokio::select! {
                    biased;
                    () = stopping.cancelled() => {}
                    Some(done) = self.batches.join_next() => self.finished(done),
                    () = due, if may_claim => self.claim().await,
                    () = engine.answered(), if !may_claim => {}
                }
            }
        }
        while let Some(done) = self.batches.join_next().await {
            self.finished(done);
        }
        // It is told to stop by the same token; its error would be a panic, which was logged.
        let _ = purge.await;
    }

    /// While the broker is away, one record at a time finds out whether it is back.
    fn may_claim(&self) -> bool {
        self.engine.has_room() && (self.batches.is_empty() || !self.broker.is_down())
    }

    async fn claim(&mut self) {
        let size = if self.broker.is_down() { 1 } else { self.engine.options.batch_size };
        let leased = match self.engine.claim(size).await {
            Ok(leased) => leased,
            Err(error) => return self.database_failed(&error),
        };
        self.database.is_back();
        let records = leased.batch.records();
        self.stats.set_lag(records.iter().map(ClaimedRecord::age).max().unwrap_or_default());
        let full = u32::try_from(records.len()).is_ok_and(|n| n >= size);
        self.next_claim = Instant::now();
        if !full {
            self.next_claim += jittered(self.engine.options.poll_interval);
        }
        if records.is_empty() {
            return;
        }
        let keyed = records.iter().any(|r| r.record().get_ordering_key().is_some());
        let engine = Arc::clone(&self.engine);
        self.batches.spawn(async move { (engine.publish(leased).await, keyed) });
    }

    fn finished(&mut self, done: Result<(RelayReport, bool), tokio::task::JoinError>) {
        let (report, keyed) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a batch of the outbox relay panicked; its lease will end");
                return self.stats.set_last_error(error.to_string());
            }
        };
        self.stats.add(&report);
        if report.broker_answered() {
            if self.broker.is_back() {
                self.next_claim = Instant::now();
            }
            // The next records of these keys are claimable only now.
            if keyed && report.published > 0 && !self.database.is_down() {
                self.next_claim = Instant::now();
            }
        } else if report.claimed > 0 {
            let reason = report.last_error.as_deref().unwrap_or("its answers came too late");
            self.next_claim = self.broker.failed(reason);
        }
    }

    fn database_failed(&mut self, error: &Error) {
        let reason = with_causes(error);
        self.next_claim = self.database.failed(&reason);
        self.stats.set_last_error(reason);
    }

    /// Waits until the table has its columns: a service may start before its migration is done.
    async fn wait_for_table(&mut self) -> std::ops::ControlFlow<()> {
        loop {
            match in_time(self.engine.store.check()).await {
                Ok(()) => {
                    self.database.is_back();
                    return std::ops::ControlFlow::Continue(());
                }
                Err(error) => self.database_failed(&error),
            }
            let wait = self.next_claim.saturating_duration_since(Instant::now());
            sleep_or_stop(&self.engine.stopping, wait).await?;
        }
    }
}

/// Whether something that the relay needs is there: logged once when lost and once when regained.
#[derive(Debug)]
struct Dependency {
    what: &'static str,
    stats: Arc<Stats>,
    down_since: Option<Instant>,
    next_try: Instant,
    backoff: Backoff,
}

impl Dependency {
    fn new(what: &'static str, backoff: Backoff, stats: Arc<Stats>) -> Self {
        Self { what, stats, down_since: None, next_try: Instant::now(), backoff }
    }

    fn is_down(&self) -> bool {
        self.down_since.is_some()
    }

    /// Notes a failure and returns when to try again. Failures of work that was under way
    /// together count as one.
    fn failed(&mut self, reason: &str) -> Instant {
        let now = Instant::now();
        if self.down_since.is_none() {
            tracing::warn!(reason, "the outbox relay has lost {}; it keeps trying", self.what);
            self.down_since = Some(now);
        }
        self.stats.set_trouble(self.what, Some(reason));
        if now >= self.next_try {
            self.next_try = now + self.backoff.next();
        }
        self.next_try
    }

    /// Notes a success; returns whether it ends an outage.
    fn is_back(&mut self) -> bool {
        let Some(since) = self.down_since.take() else { return false };
        self.stats.set_trouble(self.what, None);
        let after = since.elapsed();
        tracing::info!(?after, "the outbox relay has {} back", self.what);
        self.backoff.reset();
        true
    }
}

/// Waits until a claim is due: at its time, or when woken, unless the relay is backing off.
async fn due(at: Instant, notifier: Option<&Notifier>) {
    let timer = tokio::time::sleep_until(at);
    match notifier {
        None => timer.await,
        Some(notifier) => tokio::select! {
            () = timer => {}
            () = notifier.woken() => {}
        },
    }
}

fn database_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(200), Duration::from_secs(10))
}

fn broker_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}

/// Spreads the relays of several processes over the interval.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.1 * fastrand::f64())
}

async fn sleep_or_stop(
    stopping: &tokio_util::sync::CancellationToken,
    wait: Duration,
) -> std::ops::ControlFlow<()> {
    match stopping.run_until_cancelled(tokio::time::sleep(wait)).await {
        Some(()) => std::ops::ControlFlow::Continue(()),
        None => std::ops::ControlFlow::Break(()),
    }
}

/// Deletes published records once they are old enough, in bounded statements.
async fn purge<T: OutboxTarget, S: OutboxStore>(engine: Arc<Engine<T, S>>, stats: Arc<Stats>) {
    let Some(retention) = engine.options.retention else { return };
    let mut down = false;
    while sleep_or_stop(&engine.stopping, jittered(engine.options.purge_interval))
        .await
        .is_continue()
    {
        match purge_all(&engine, retention).await {
            Ok(()) => down = false,
            Err(error) => {
                let reason = with_causes(&error);
                if !std::mem::replace(&mut down, true) {
                    tracing::warn!(reason, "the outbox relay cannot delete old records for now");
                }
                stats.set_last_error(reason);
            }
        }
    }
}

async fn purge_all<T: OutboxTarget, S: OutboxStore>(
    engine: &Engine<T, S>,
    retention: Duration,
) -> Result<()> {
    while !engine.stopping.is_cancelled() {
        let deleted = in_time(engine.store.purge(retention, PURGE_BATCH)).await?;
        if deleted < u64::from(PURGE_BATCH) {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}
