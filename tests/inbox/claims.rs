//! The idempotent consumer: claims around a handler whose effects are its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{
    Claim, Envelope, Error, HandlerError, IdempotencyStore, MemoryIdempotencyStore, Message,
    Result, RetryPolicy,
};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::{
    bank::on_every_database,
    support::{Broker, Fixture, eventually, run},
};

fn quickly(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, Duration::from_millis(5))
}

on_every_database! {
    async fn copies_over_four_consumers_run_the_handler_once<B>(fx, bank) {
        let queue = fx.queue("mails").await;
        let mut consumers = Vec::new();
        for _ in 0..4 {
            let bank = bank.clone();
            let mq = fx.another().await;
            let consumer = mq.consumer::<u32>(queue.as_str()).prefetch(8).concurrency(4)
                .idempotent(bank.store())
                .start(move |message: Message<u32>| {
                    let bank = bank.clone();
                    async move { Ok(bank.effect_now(message.id()).await?) }
                }).await.unwrap();
            consumers.push(consumer);
        }
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        for number in 0..100 {
            let envelope = Envelope::new();
            let copy = || publisher.send_with(&number, envelope.clone());
            let (one, two) = tokio::join!(copy(), copy());
            one.unwrap();
            two.unwrap();
        }
        eventually("200 deliveries to be settled", async || {
            let settled = consumers.iter().map(|c| c.stats().acked + c.stats().duplicates);
            settled.sum::<u64>() == 200
        }).await;
        assert_eq!(bank.effects().await, (100, 100));
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
    }

    async fn a_failure_gives_the_claim_back<B>(fx, bank) {
        let queue = fx.queue("mails").await;
        let consumer = {
            let bank = bank.clone();
            fx.mq.consumer::<u32>(queue.as_str()).retry(quickly(3)).idempotent(bank.store())
                .start(move |message: Message<u32>| {
                    let bank = bank.clone();
                    async move {
                        match (message.payload(), message.attempt()) {
                            (1, 1 | 2) => Err(HandlerError::retry("not yet")),
                            (2, _) => panic!("never"),
                            _ => Ok(bank.effect_now(message.id()).await?),
                        }
                    }
                }).await.unwrap()
        };
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        publisher.send(&1).await.unwrap();
        eventually("the third attempt", async || consumer.stats().acked == 1).await;
        assert_eq!(consumer.stats().in_progress, 0);
        publisher.send(&2).await.unwrap();
        fx.until_length(&format!("{queue}.dlq"), 1).await;
        assert_eq!(bank.effects().await, (1, 1));
    }

    async fn a_slow_handler_keeps_its_claim_by_renewing_it<B>(fx, bank) {
        let queue = fx.queue("mails").await;
        let (gate, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let store = Counted { inner: MemoryIdempotencyStore::new().lease(Duration::from_millis(60)), ..Counted::default() };
        let renewals = store.renewals.clone();
        let consumer = {
            let (gate, runs, bank) = (gate.clone(), runs.clone(), bank.clone());
            fx.mq.consumer::<u32>(queue.as_str()).concurrency(2).idempotent(store)
                .start(move |message: Message<u32>| {
                    let (gate, runs, bank) = (gate.clone(), runs.clone(), bank.clone());
                    async move {
                        runs.fetch_add(1, Ordering::SeqCst);
                        gate.acquire().await?.forget();
                        Ok(bank.effect_now(message.id()).await?)
                    }
                }).await.unwrap()
        };
        let envelope = Envelope::new();
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        publisher.send_with(&1, envelope.clone()).await.unwrap();
        eventually("ten leases to pass", async || renewals.load(Ordering::SeqCst) >= 30).await;
        publisher.send_with(&1, envelope).await.unwrap();
        eventually("the copy to be put back", async || consumer.stats().in_progress >= 1).await;
        gate.add_permits(2);
        eventually("both to be settled", async || {
            (consumer.stats().acked, consumer.stats().duplicates) == (1, 1)
        }).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(bank.effects().await, (1, 1));
    }
}

/// A store that can be down, and counts.
#[derive(Clone)]
struct Counted {
    inner: MemoryIdempotencyStore,
    down: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    renewals: Arc<AtomicUsize>,
}

impl Default for Counted {
    fn default() -> Self {
        Self {
            inner: MemoryIdempotencyStore::new().lease(Duration::from_millis(500)),
            down: Arc::default(),
            asked: Arc::default(),
            renewals: Arc::default(),
        }
    }
}

impl Counted {
    fn or_down<'a, T: Send + 'a>(
        &'a self,
        answer: BoxFuture<'a, Result<T>>,
    ) -> BoxFuture<'a, Result<T>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.down.load(Ordering::SeqCst) {
            let down = Error::Store { action: "answer", source: "it is down".into() };
            return Box::pin(std::future::ready(Err(down)));
        }
        answer
    }
}

impl IdempotencyStore for Counted {
    fn claim_lease(&self) -> Duration {
        self.inner.claim_lease()
    }
    fn try_claim<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<Claim>> {
        self.or_down(self.inner.try_claim(consumer, id))
    }
    fn confirm<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.or_down(self.inner.confirm(c, id, token))
    }
    fn release<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.or_down(self.inner.release(c, id, token))
    }
    fn renew<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        self.inner.renew(c, id, token)
    }
    fn forget<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.inner.forget(consumer, id)
    }
    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64>> {
        self.inner.purge(limit)
    }
}

async fn with_a_store_that_fails(case: impl AsyncFn(Arc<Fixture>, Counted)) {
    run(Broker::Memory, |fx| async { case(fx, Counted::default()).await }).await;
}

#[tokio::test]
async fn while_the_store_is_down_a_message_is_held_and_the_store_is_not_hammered() {
    with_a_store_that_fails(async |fx, store| {
        let queue = fx.queue("mails").await;
        store.down.store(true, Ordering::SeqCst);
        let runs = Arc::new(AtomicUsize::new(0));
        let consumer = {
            let runs = runs.clone();
            fx.mq.consumer::<u32>(queue.as_str()).idempotent(store.clone()).start(move |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                std::future::ready(Ok(()))
            })
        };
        let consumer = consumer.await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        eventually("five attempts", async || store.asked.load(Ordering::SeqCst) >= 5).await;
        assert_eq!((runs.load(Ordering::SeqCst), consumer.stats().acked), (0, 0));
        store.down.store(false, Ordering::SeqCst);
        eventually("the message to be handled", async || consumer.stats().acked == 1).await;
        assert_eq!((runs.load(Ordering::SeqCst), consumer.stats().received), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn a_release_that_fails_delays_the_message_and_does_not_lose_it() {
    with_a_store_that_fails(async |fx, store| {
        let queue = fx.queue("mails").await;
        let consumer = {
            let store = store.clone();
            fx.mq.consumer::<u32>(queue.as_str()).retry(quickly(5)).idempotent(store.clone()).start(
                move |message: Message<u32>| {
                    // Down exactly when the failure is to be noted.
                    store.down.store(message.attempt() == 1, Ordering::SeqCst);
                    let answer = if message.attempt() == 1 {
                        Err(HandlerError::retry("not yet"))
                    } else {
                        Ok(())
                    };
                    std::future::ready(answer)
                },
            )
        };
        let consumer = consumer.await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        eventually("the retry", async || consumer.stats().retried == 1).await;
        store.down.store(false, Ordering::SeqCst);
        eventually("the message to be handled", async || consumer.stats().acked == 1).await;
        assert_eq!(consumer.stats().duplicates, 0);
    })
    .await;
}
