//! B100: a panic in any code that the application brings ends its message, and nothing else.

use std::time::Duration;

use acemq::{
    BoxError, Claim, Decoder, IdempotencyStore, MemoryIdempotencyStore, Message, Result,
    RetryPolicy,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::{
    on_both_brokers,
    support::{Broker, Fixture, eventually},
};

on_both_brokers!(
    every_tenth_handler_panics_and_the_others_are_handled,
    a_decoder_that_panics_stops_nothing,
    a_store_that_panics_stops_nothing,
);

const MESSAGES: u64 = 500;

async fn fill(fx: &Fixture, queue: &str) {
    let numbers: Vec<u64> = (0..MESSAGES).collect();
    let sent = fx.mq.publisher::<u64>("", queue).send_all(&numbers).await;
    assert_eq!(sent.confirmed() as u64, MESSAGES);
}

/// All but every tenth were handled, those are dead letters, and nothing is in between.
async fn all_are_settled(fx: Fixture, queue: &str, consumer: acemq::Consumer) {
    eventually("all to be settled", async || {
        let stats = consumer.stats();
        (stats.acked, stats.dead_lettered) == (MESSAGES * 9 / 10, MESSAGES / 10)
    })
    .await;
    fx.until_length(&format!("{queue}.dlq"), MESSAGES / 10).await;
    assert!(consumer.close().await.is_complete());
    assert_eq!(fx.mq.queue_length(queue).await.unwrap(), Some(0), "nothing stayed unsettled");
    fx.clean_up().await;
}

async fn every_tenth_handler_panics_and_the_others_are_handled(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    fill(&fx, &queue).await;
    let consumer = fx.mq.consumer::<u64>(queue.as_str()).prefetch(20).concurrency(4);
    // A panic is no failure that a retry could help.
    let consumer = consumer
        .retry(RetryPolicy::fixed(3, Duration::from_millis(5)))
        .start(|message: Message<u64>| {
            // Before there is a future, and inside of it.
            assert!(!message.payload().is_multiple_of(20), "outside");
            async move {
                assert!(message.payload() % 20 != 10, "inside");
                Ok(())
            }
        })
        .await
        .unwrap();
    all_are_settled(fx, &queue, consumer).await;
}

struct Fragile;

impl Decoder<u64> for Fragile {
    fn accepts(&self, _: Option<&str>) -> bool {
        true
    }

    fn decode(&self, body: &Bytes) -> std::result::Result<u64, BoxError> {
        let number: u64 = std::str::from_utf8(body)?.parse()?;
        assert!(!number.is_multiple_of(10), "I cannot read {number}");
        Ok(number)
    }
}

async fn a_decoder_that_panics_stops_nothing(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    fill(&fx, &queue).await;
    let consumer = fx.mq.consumer_with::<u64>(queue.as_str(), Fragile).prefetch(20).concurrency(4);
    let consumer = consumer.start(|_| async { Ok(()) }).await.unwrap();
    all_are_settled(fx, &queue, consumer).await;
}

/// Panics over one of ten ids, which end in the number of their message.
struct Brittle(MemoryIdempotencyStore);

impl IdempotencyStore for Brittle {
    fn try_claim<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<Claim>> {
        assert!(!id.ends_with('0'), "no room for {id}");
        self.0.try_claim(consumer, id)
    }
    fn confirm<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.0.confirm(c, id, token)
    }
    fn release<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.0.release(c, id, token)
    }
    fn renew<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.0.renew(c, id, token)
    }
    fn forget<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.0.forget(consumer, id)
    }
    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64>> {
        self.0.purge(limit)
    }
}

async fn a_store_that_panics_stops_nothing(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    let publisher = fx.mq.publisher::<u64>("", queue.as_str());
    let sends = (0..MESSAGES).map(|number| {
        let envelope = acemq::Envelope::new().with_id(format!("order {number}"));
        let publisher = publisher.clone();
        async move { publisher.send_with(&number, envelope).await.unwrap() }
    });
    futures::future::join_all(sends).await;
    let consumer = fx.mq.consumer::<u64>(queue.as_str()).prefetch(20).concurrency(4);
    let store = Brittle(MemoryIdempotencyStore::new());
    let consumer = consumer.idempotent(store).start(|_| async { Ok(()) }).await.unwrap();
    all_are_settled(fx, &queue, consumer).await;
}
