//! Ending: of a handle whose messages failed, of a connection that says nothing, of a process.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use acemq::{AceMq, BytesCodec, HandlerError, HandlerResult, Message, RetryPolicy};
use bytes::Bytes;

use crate::{
    Cuttable, on_both_brokers,
    support::{Broker, Fixture, Inbox, amqp_url, eventually, soon},
};

on_both_brokers!(a_close_waits_for_nothing_that_has_failed);

/// B120: every way out of a handling is counted, so no close waits for one that is over.
async fn a_close_waits_for_nothing_that_has_failed(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    let consumer = fx.mq.consumer::<String>(queue.as_str()).concurrency(4);
    let consumer = consumer
        .retry(RetryPolicy::fixed(2, Duration::from_millis(5)))
        .start(|message: Message<String>| async move {
            match message.payload().as_str() {
                "panic" => panic!("out of bounds"),
                "park" => Err(HandlerError::park("look at this")),
                "retry" => Err(HandlerError::retry("not now")),
                _ => Ok(()),
            }
        })
        .await
        .unwrap();
    let words = ["fine", "panic", "park", "retry"].map(str::to_owned);
    let publisher = fx.mq.publisher::<String>("", queue.as_str());
    let raw = fx.mq.publisher_with::<Bytes>("", queue.as_str(), BytesCodec);
    let raw = raw.content_type("application/json");
    for _ in 0..10 {
        assert_eq!(publisher.send_all(&words).await.confirmed(), 4);
        raw.send(&Bytes::from_static(b"{broken")).await.unwrap();
    }
    eventually("all to be settled", async || {
        let stats = consumer.stats();
        (stats.acked, stats.dead_lettered, stats.parked) == (10, 20, 20)
    })
    .await;
    let shutdown = soon("the close", consumer.close()).await;
    assert!(shutdown.is_complete());
    assert_eq!(consumer.stats().in_flight, 0);
    fx.clean_up().await;
}

/// B120: neither a handler that hangs nor a broker that no longer answers keeps a close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_over_a_connection_that_says_nothing_ends_by_its_limits() {
    let world = Cuttable::on(Broker::RabbitMq).await;
    let queue = world.fx.queue("orders").await;
    let mq = world.options().shutdown_timeout(Duration::from_millis(500)).connect().await.unwrap();
    let consumer = mq.consumer::<u32>(queue.as_str());
    let consumer = consumer.start(|_| std::future::pending::<HandlerResult>()).await.unwrap();
    mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
    eventually("the delivery", async || consumer.stats().in_flight == 1).await;

    let proxy = world.proxy.as_ref().unwrap();
    proxy.stall();
    let started = Instant::now();
    let shutdown = soon("the close", mq.close()).await;
    assert_eq!(shutdown.abandoned(), 1);
    // The limit of handlers, and of a goodbye to each channel and connection.
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    proxy.forward();
    let mut inbox = Inbox::of(&world.fx.mq, &queue).await;
    assert!(inbox.next().await.is_redelivered());
    world.fx.clean_up().await;
}

/// B122: `Ok` is said after the broker has the message, so an end without a goodbye takes back none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_with_ok_is_in_the_queue_although_its_process_ends_at_once() {
    let fx = Fixture::on(Broker::RabbitMq).await;
    let queue = fx.queue("orders").await;
    let mut inbox = Inbox::of(&fx.mq, &queue).await;
    let mut arrived = HashSet::new();
    for round in 0..10 {
        let (queue, enough) = (queue.clone(), 20 + 13 * round);
        let publishing = std::thread::spawn(move || publish_and_vanish(&queue, enough));
        let confirmed = tokio::task::spawn_blocking(|| publishing.join().unwrap()).await.unwrap();
        assert!(confirmed.len() >= enough);
        while !confirmed.is_subset(&arrived) {
            arrived.insert(inbox.next().await.id().to_owned());
        }
    }
    fx.clean_up().await;
}

/// Publishes from eight tasks of a runtime that is dropped in the middle of it.
fn publish_and_vanish(queue: &str, enough: usize) -> HashSet<String> {
    let confirmed = Arc::<Mutex<HashSet<String>>>::default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mq = AceMq::connect(amqp_url()).await.unwrap();
        for _ in 0..8 {
            let publisher = mq.publisher::<u32>("", queue);
            let confirmed = Arc::clone(&confirmed);
            tokio::spawn(async move {
                while let Ok(id) = publisher.send(&1).await {
                    confirmed.lock().unwrap().insert(id);
                }
            });
        }
        eventually("enough", async || confirmed.lock().unwrap().len() >= enough).await;
    });
    runtime.shutdown_background();
    confirmed.lock().unwrap().clone()
}
