//! A target that answers as a test says, and a store that fails when a test says.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{
    Error, Result,
    outbox::{
        ClaimedBatch, FailedPublish, Notifier, OutboxRecord, OutboxStore, OutboxTarget,
        RetiredRecord,
    },
};
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

type Rule = Box<dyn Fn(&str, u32) -> Result<()> + Send + Sync>;

/// Records what is published. A rule gives the answer by payload and try, from 1.
#[derive(Clone)]
pub struct Target(Arc<Inner>);

struct Inner {
    rule: Mutex<Rule>,
    published: Mutex<Vec<OutboxRecord>>,
    tries: Mutex<HashMap<String, u32>>,
    /// Publishes take a permit of this, so that a test can hold them up.
    gate: Semaphore,
    delay: Mutex<Duration>,
    in_flight: Mutex<HashMap<String, usize>>,
    overlaps: AtomicUsize,
    changed: Notify,
}

impl Target {
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            rule: Mutex::new(Box::new(|_, _| Ok(()))),
            published: Mutex::default(),
            tries: Mutex::default(),
            gate: Semaphore::new(1_000_000),
            delay: Mutex::default(),
            in_flight: Mutex::default(),
            overlaps: AtomicUsize::new(0),
            changed: Notify::new(),
        }))
    }

    pub fn answering(rule: impl Fn(&str, u32) -> Result<()> + Send + Sync + 'static) -> Self {
        let target = Self::new();
        target.answer(rule);
        target
    }

    pub fn answer(&self, rule: impl Fn(&str, u32) -> Result<()> + Send + Sync + 'static) {
        *self.0.rule.lock().unwrap() = Box::new(rule);
    }

    /// Holds up every publish until `open_gate`.
    pub fn closed_gate() -> Self {
        let target = Self::new();
        target.0.gate.forget_permits(1_000_000);
        target
    }

    pub fn open_gate(&self) {
        self.0.gate.add_permits(1_000_000);
    }

    pub fn slow(delay: Duration) -> Self {
        let target = Self::new();
        *target.0.delay.lock().unwrap() = delay;
        target
    }

    pub fn published(&self) -> Vec<OutboxRecord> {
        self.0.published.lock().unwrap().clone()
    }

    /// The payloads in the order in which their publishes were confirmed.
    pub fn names(&self) -> Vec<String> {
        self.published().iter().map(name).collect()
    }

    pub fn tries(&self, name: &str) -> u32 {
        self.0.tries.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    /// How often two records of one ordering key were in flight together.
    pub fn overlaps(&self) -> usize {
        self.0.overlaps.load(Ordering::SeqCst)
    }

    /// Waits until the target's state satisfies `condition`; fails after 20 s.
    pub async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let wait = async {
            loop {
                let changed = self.0.changed.notified();
                if condition(self) {
                    return;
                }
                changed.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(waited.is_ok(), "not within 20 s; published: {:?}", self.names());
    }
}

pub fn name(record: &OutboxRecord) -> String {
    String::from_utf8_lossy(record.payload()).into_owned()
}

impl OutboxTarget for Target {
    async fn publish(&self, record: &OutboxRecord) -> Result<()> {
        let (inner, name) = (&self.0, name(record));
        let tries = {
            let mut tries = inner.tries.lock().unwrap();
            let tries = tries.entry(name.clone()).or_default();
            *tries += 1;
            *tries
        };
        let key = record.get_ordering_key().map(str::to_owned);
        let _in_flight = key.map(|key| InFlight::new(self.clone(), key));
        inner.changed.notify_waiters();
        inner.gate.acquire().await.unwrap().forget();
        let delay = *inner.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        let answer = {
            let rule = inner.rule.lock().unwrap_or_else(PoisonError::into_inner);
            rule(&name, tries)
        };
        if answer.is_ok() {
            inner.published.lock().unwrap().push(record.clone());
        }
        inner.changed.notify_waiters();
        answer
    }
}

struct InFlight(Target, String);

impl InFlight {
    fn new(target: Target, key: String) -> Self {
        let mut all = target.0.in_flight.lock().unwrap();
        let count = all.entry(key.clone()).or_default();
        *count += 1;
        if *count > 1 {
            target.0.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        drop(all);
        Self(target, key)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        *self.0.0.in_flight.lock().unwrap().get_mut(&self.1).unwrap() -= 1;
    }
}

pub fn outage() -> Error {
    Error::Disconnected { waited: Duration::from_millis(1) }
}

pub fn nacked() -> Error {
    Error::Nacked { exchange: "orders".into(), routing_key: "order.placed".into() }
}

/// Another store, as a team of its own would write it: it passes everything on, except while its
/// database is said to be away.
#[derive(Clone)]
pub struct Flaky<S> {
    pub store: S,
    pub away: Arc<AtomicBool>,
    pub calls: Arc<AtomicU64>,
}

impl<S> Flaky<S> {
    pub fn new(store: S) -> Self {
        Self { store, away: Arc::default(), calls: Arc::default() }
    }

    fn reach(&self) -> Result<&S> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            let source = "the database is away".into();
            return Err(Error::Store { action: "answer", source });
        }
        Ok(&self.store)
    }
}

impl<S: OutboxStore> OutboxStore for Flaky<S> {
    type Transaction = S::Transaction;

    async fn add(&self, tx: &mut S::Transaction, record: OutboxRecord) -> Result<bool> {
        self.reach()?.add(tx, record).await
    }

    async fn claim_batch(&self, batch: u32, lease: Duration) -> Result<ClaimedBatch> {
        self.reach()?.claim_batch(batch, lease).await
    }

    async fn mark_published(&self, token: Uuid, seqs: &[i64]) -> Result<u64> {
        self.reach()?.mark_published(token, seqs).await
    }

    async fn mark_failed(&self, token: Uuid, failures: &[FailedPublish]) -> Result<u64> {
        self.reach()?.mark_failed(token, failures).await
    }

    async fn renew(&self, token: Uuid, seqs: &[i64], lease: Duration) -> Result<u64> {
        self.reach()?.renew(token, seqs, lease).await
    }

    async fn release(&self, token: Uuid, seqs: &[i64], delay: Duration) -> Result<u64> {
        self.reach()?.release(token, seqs, delay).await
    }

    async fn pending_count(&self) -> Result<u64> {
        self.reach()?.pending_count().await
    }

    async fn oldest_pending_age(&self) -> Result<Option<Duration>> {
        self.reach()?.oldest_pending_age().await
    }

    async fn retired(&self, limit: u32) -> Result<Vec<RetiredRecord>> {
        self.reach()?.retired(limit).await
    }

    async fn requeue(&self, seqs: &[i64]) -> Result<u64> {
        self.reach()?.requeue(seqs).await
    }

    async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64> {
        self.reach()?.purge(older_than, limit).await
    }

    fn notifier(&self) -> Option<Notifier> {
        self.store.notifier()
    }
}
