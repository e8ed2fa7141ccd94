//! The broker goes away and comes back.

use std::{
    collections::HashSet,
    sync::Mutex,
    time::{Duration, Instant},
};

use acemq::{HandlerError, Message, RetryPolicy};

use crate::{
    alone,
    support::{
        Broker, Fixture, Inbox, eventually,
        ledger::keep_the_books,
        rabbitmqctl::{Restore, rabbitmqctl},
        unique, until_ready, until_reconnecting,
    },
};

/// The application is started again if the test fails in between.
pub async fn stop() -> Restore {
    let start = Restore::by(&["start_app"]);
    rabbitmqctl(&["stop_app"]).await;
    start
}

/// B11, B116: publishers and consumers keep going, and nothing that was confirmed is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_confirmed_is_lost_over_restarts_of_the_broker() {
    let _alone = alone();
    let fx = Fixture::on(Broker::RabbitMq).await;
    let mq = fx.options().connect().await.unwrap();
    let queue = fx.name("ledger");
    let recovered = Mutex::new(Vec::new());
    keep_the_books(&mq, &queue, 2, async || {
        let stopped = stop().await;
        until_reconnecting(&mq).await;
        drop(stopped);
        let started = Instant::now();
        until_ready(&mq).await;
        recovered.lock().unwrap().push(started.elapsed());
    })
    .await;
    println!("ready again after {recovered:?}");
    assert!(recovered.lock().unwrap().iter().all(|took| *took < Duration::from_secs(10)));
    let _ = mq.close().await;
    // The fixture's own handle came back by itself, too.
    until_ready(&fx.mq).await;
    fx.clean_up().await;
}

/// B117: every copy that the library makes is as durable as the original.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_in_every_place_survive_a_restart() {
    const EACH: u64 = 100;
    let _alone = alone();
    let fx = Fixture::on(Broker::RabbitMq).await;
    let queue = fx.queue("orders").await;
    let rung = format!("{queue}.retry.1h");
    let hour = Duration::from_hours(1);
    let consumer = fx
        .mq
        .consumer::<String>(queue.as_str())
        .retry(RetryPolicy::fixed(2, hour))
        .start(|message: Message<String>| async move {
            match message.payload().as_str() {
                "reject" => Err(HandlerError::reject("never")),
                "park" => Err(HandlerError::park("look at it")),
                _ => Err(HandlerError::retry("later")),
            }
        })
        .await
        .unwrap();
    let publisher = fx.mq.publisher::<String>("", queue.as_str());
    let words: Vec<String> =
        ["reject", "park", "retry"].iter().flat_map(|w| (0..EACH).map(|_| (*w).into())).collect();
    // Published transient: what the library makes of them has to be persistent all the same.
    assert_eq!(publisher.clone().transient().send_all(&words).await.confirmed(), words.len());
    let places = [format!("{queue}.dlq"), format!("{queue}.parked"), rung.clone(), queue.clone()];
    eventually("all to be moved", async || {
        let stats = consumer.stats();
        stats.dead_lettered == EACH && stats.parked == EACH && stats.retried == EACH
    })
    .await;
    consumer.close().await;
    let waiting: Vec<String> = (0..EACH).map(|_| "wait".into()).collect();
    assert_eq!(publisher.send_all(&waiting).await.confirmed(), waiting.len());
    for place in &places {
        fx.until_length(place, EACH).await;
    }

    let stopped = stop().await;
    until_reconnecting(&fx.mq).await;
    drop(stopped);
    until_ready(&fx.mq).await;
    for place in &places {
        fx.until_length(place, EACH).await;
    }
    fx.mq.delete_queue(&rung).await.unwrap();
    fx.clean_up().await;
}

/// B65: what waits for its time waits on disk, and what became due meanwhile comes soon after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduled_messages_survive_a_restart_and_overdue_ones_come_soon_after_it() {
    const MESSAGES: u64 = 200;
    let _alone = alone();
    let fx = Fixture::on(Broker::RabbitMq).await;
    let queue = fx.queue("target").await;
    let prefix = unique("schedule");
    let scheduler = fx.mq.scheduler().prefix(prefix.as_str()).await.unwrap();
    for number in 0..MESSAGES {
        let delay = Duration::from_millis(3_000 + number * 50);
        scheduler.after(delay, "", queue.as_str(), &number).await.unwrap();
    }
    let stopped = stop().await;
    until_reconnecting(&fx.mq).await;
    // Some of them become due while nobody can deliver them.
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(stopped);
    until_ready(&fx.mq).await;
    // At least once: a hop that the stop interrupted may have been made twice.
    let mut inbox = Inbox::of(&fx.mq, &queue).await;
    let mut missing: HashSet<u64> = (0..MESSAGES).collect();
    while !missing.is_empty() {
        missing.remove(&serde_json::from_slice(inbox.next().await.body()).unwrap());
    }
    assert_eq!(scheduler.stats().failed, 0);
    inbox.consumer.close().await;
    scheduler.close().await;
    for end in ["due", "due.dlq", "due.parked", "1h", "10m", "1m", "10s", "1s"] {
        fx.mq.delete_queue(&format!("{prefix}.{end}")).await.unwrap();
    }
    fx.clean_up().await;
}
