//! What connections that are cut again and again do to messages that fail, and to duplicates.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use acemq::{HandlerError, MemoryIdempotencyStore, Message, RetryPolicy};
use tokio::sync::Semaphore;

use crate::{
    Cuttable, on_both_brokers,
    support::{Broker, Inbox, eventually, until_ready},
};

on_both_brokers!(
    a_message_that_fails_is_in_its_queue_or_set_aside_whenever_the_connection_is_cut,
    each_message_has_one_effect_and_none_comes_for_ever_while_acknowledgements_are_cut_off,
);

/// Fewer than the returns that RabbitMQ 4 allows a message.
const CUTS: usize = 12;

/// B93: the copy is confirmed before the original is acknowledged.
async fn a_message_that_fails_is_in_its_queue_or_set_aside_whenever_the_connection_is_cut(
    broker: Broker,
) {
    const MESSAGES: usize = 360;
    let world = Cuttable::on(broker).await;
    let queue = world.fx.queue("orders").await;
    let numbers: Vec<usize> = (0..MESSAGES).collect();
    let sent = world.fx.mq.publisher::<usize>("", queue.as_str()).send_all(&numbers).await;
    let sent: HashSet<String> = sent.into_result().unwrap().into_iter().collect();

    let mq = world.options().connect().await.unwrap();
    // Each failure takes a permit, so that cuts meet messages on every part of the way.
    let permits = Arc::new(Semaphore::new(0));
    let consumer = {
        let permits = Arc::clone(&permits);
        mq.consumer::<usize>(queue.as_str())
            .prefetch(20)
            .concurrency(4)
            .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
            .start(move |_: Message<usize>| {
                let permits = Arc::clone(&permits);
                async move {
                    permits.acquire().await?.forget();
                    Err(HandlerError::retry("never works"))
                }
            })
            .await
            .unwrap()
    };
    for _ in 0..CUTS {
        let before = consumer.stats();
        permits.add_permits(2 * MESSAGES / CUTS);
        eventually("some to be set aside or retried", async || {
            let now = consumer.stats();
            now.retried + now.dead_lettered >= before.retried + before.dead_lettered + 10
        })
        .await;
        world.cut(&mq).await;
        until_ready(&mq).await;
    }
    permits.add_permits(100 * MESSAGES);

    let mut dead = Inbox::of(&world.fx.mq, &format!("{queue}.dlq")).await;
    let mut set_aside = HashSet::new();
    while set_aside.len() < MESSAGES {
        set_aside.insert(dead.next().await.id().to_owned());
    }
    assert_eq!(set_aside, sent);
    eventually("the queue to be empty", async || {
        world.fx.mq.queue_length(&queue).await.unwrap() == Some(0)
    })
    .await;
    mq.close().await;
    world.fx.clean_up().await;
}

/// B40: a duplicate is acknowledged where it came from, and a failed acknowledgement ends with the
/// next delivery.
async fn each_message_has_one_effect_and_none_comes_for_ever_while_acknowledgements_are_cut_off(
    broker: Broker,
) {
    const MESSAGES: usize = 120;
    let world = Cuttable::on(broker).await;
    let queue = world.fx.queue("orders").await;
    let numbers: Vec<usize> = (0..MESSAGES).collect();
    let sent = world.fx.mq.publisher::<usize>("", queue.as_str()).send_all(&numbers).await;
    assert_eq!(sent.confirmed(), MESSAGES);

    let mq = world.options().connect().await.unwrap();
    let effects = Arc::<Mutex<HashMap<usize, usize>>>::default();
    let permits = Arc::new(Semaphore::new(0));
    let consumer = {
        let (effects, permits) = (Arc::clone(&effects), Arc::clone(&permits));
        mq.consumer::<usize>(queue.as_str())
            .prefetch(20)
            .concurrency(4)
            .idempotent(MemoryIdempotencyStore::new())
            .start(move |message: Message<usize>| {
                let (effects, permits) = (Arc::clone(&effects), Arc::clone(&permits));
                async move {
                    *effects.lock().unwrap().entry(*message.payload()).or_default() += 1;
                    // Held with the effect done, so that the acknowledgement meets the cut.
                    permits.acquire().await?.forget();
                    Ok(())
                }
            })
            .await
            .unwrap()
    };
    for round in 1..=CUTS {
        eventually("handlers to be at work", async || consumer.stats().in_flight > 0).await;
        world.cut(&mq).await;
        permits.add_permits(MESSAGES / CUTS);
        until_ready(&mq).await;
        eventually("some effects", async || effects.lock().unwrap().len() >= round).await;
    }
    permits.add_permits(MESSAGES);
    eventually("every effect and an empty queue", async || {
        effects.lock().unwrap().len() == MESSAGES
            && consumer.stats().in_flight == 0
            && world.fx.mq.queue_length(&queue).await.unwrap() == Some(0)
    })
    .await;
    assert!(consumer.close().await.is_complete());
    assert!(effects.lock().unwrap().values().all(|times| *times == 1), "{effects:?}");
    assert!(consumer.stats().settle_failed > 0, "no acknowledgement met a cut");
    // What was put back while its twin was at work is settled too, and nothing was set aside.
    for queue in [queue.clone(), format!("{queue}.dlq"), format!("{queue}.parked")] {
        assert_eq!(world.fx.mq.queue_length(&queue).await.unwrap(), Some(0), "{queue}");
    }
    mq.close().await;
    world.fx.clean_up().await;
}
