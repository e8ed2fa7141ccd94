//! Stopping while everything runs, and while nothing does.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use acemq::{AceMq, ConnectionState, Consumer, HandlerResult, Message, Queue, Topology};
use tokio::sync::mpsc;

use crate::{
    World,
    support::{Broker, Fixture, eventually, soon, until_reconnecting},
};

const MESSAGES: u32 = 3000;
const STOPS: usize = 50;

type Seen = Arc<Mutex<HashMap<u32, usize>>>;

async fn counting(mq: &AceMq, queue: &str, seen: &Seen) -> Consumer {
    let seen = Arc::clone(seen);
    let handler = move |message: Message<u32>| {
        let seen = Arc::clone(&seen);
        async move {
            tokio::task::yield_now().await;
            *seen.lock().unwrap().entry(*message.payload()).or_default() += 1;
            Ok(())
        }
    };
    mq.consumer::<u32>(queue).prefetch(100).concurrency(4).start(handler).await.unwrap()
}

/// B118: cancel, finish what runs, give back what was sent ahead.
async fn stop_and_start(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    let numbers: Vec<u32> = (0..MESSAGES).collect();
    let publisher = fx.mq.publisher::<u32>("", queue.as_str());
    assert_eq!(publisher.send_all(&numbers).await.confirmed(), numbers.len());
    let seen = Seen::default();
    let handled = || seen.lock().unwrap().len();
    let mut random = fastrand::Rng::with_seed(3);
    let mut slowest = Duration::ZERO;
    for _ in 0..STOPS {
        let consumer = counting(&fx.mq, &queue, &seen).await;
        let goal = (handled() + random.usize(1..40)).min(numbers.len());
        eventually("some to be handled", async || handled() >= goal).await;
        let stopping = Instant::now();
        assert!(soon("the stop", consumer.close()).await.is_complete());
        slowest = slowest.max(stopping.elapsed());
        let stats = consumer.stats();
        assert_eq!((stats.in_flight, stats.settle_failed), (0, 0));
        assert_eq!(stats.received, stats.acked);
        // Nothing stays unacknowledged: all that was not handled can be delivered.
        fx.until_length(&queue, u64::from(MESSAGES) - handled() as u64).await;
    }
    let consumer = counting(&fx.mq, &queue, &seen).await;
    eventually("the rest", async || handled() == numbers.len()).await;
    consumer.close().await;
    assert!(seen.lock().unwrap().values().all(|times| *times == 1), "handled more than once");
    assert!(slowest < Duration::from_secs(5), "a stop took {slowest:?}");
    fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_stopped_and_started_fifty_times_handles_each_message_once_on_rabbitmq() {
    stop_and_start(Broker::RabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_stopped_and_started_fifty_times_handles_each_message_once_in_memory() {
    stop_and_start(Broker::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_while_the_connection_is_down_ends_in_time() {
    let world = World::new().await;
    let queue = world.fx.queue("orders").await;
    let mq = world.connect().await;
    let consumer = mq.consumer::<u32>(queue.as_str()).start(|_| async { Ok(()) }).await.unwrap();
    world.proxy.refuse();
    until_reconnecting(&mq).await;
    let waiting = {
        let publisher = mq.publisher::<u32>("", queue.as_str());
        tokio::spawn(async move { publisher.send(&1).await })
    };
    let started = Instant::now();
    let shutdown = soon("the close", mq.close()).await;
    assert!(shutdown.is_complete());
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(mq.state(), ConnectionState::Closed);
    assert_eq!(consumer.state(), acemq::ConsumerState::Closed);
    // A publish that waits for the connection learns that there will be none.
    let error = soon("the waiting publish", waiting).await.unwrap().unwrap_err();
    assert!(matches!(error, acemq::Error::Closed | acemq::Error::Interrupted { .. }), "{error:?}");
    let attempts = world.proxy.attempts();
    eventually("no socket", async || world.proxy.open() == 0).await;
    assert_eq!(world.proxy.attempts(), attempts);
    world.fx.clean_up().await;
}

async fn close_twice(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    let mq = fx.options().shutdown_timeout(Duration::from_millis(300)).connect().await.unwrap();
    let consumer = mq
        .consumer::<u32>(queue.as_str())
        .start(|_| std::future::pending::<HandlerResult>())
        .await
        .unwrap();
    mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
    eventually("the handler", async || consumer.stats().in_flight == 1).await;
    let other = mq.clone();
    let started = Instant::now();
    let (first, second, third) =
        soon("all closes", async { tokio::join!(mq.close(), other.close(), consumer.close()) })
            .await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!((first.abandoned(), second.abandoned(), third.abandoned()), (1, 1, 1));
    fx.until_length(&queue, 1).await;
    fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_closes_at_a_time_report_the_same_on_rabbitmq() {
    close_twice(Broker::RabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_closes_at_a_time_report_the_same_in_memory() {
    close_twice(Broker::Memory).await;
}

/// The handler waits for a close that waits for the handler; the deadline decides.
async fn close_inside(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    let mq = fx.options().shutdown_timeout(Duration::from_millis(300)).connect().await.unwrap();
    let (called, mut calls) = mpsc::unbounded_channel();
    let handler = {
        let mq = mq.clone();
        move |_: Message<u32>| {
            let (mq, called) = (mq.clone(), called.clone());
            async move {
                called.send(())?;
                mq.close().await;
                Ok(())
            }
        }
    };
    let consumer = mq.consumer::<u32>(queue.as_str()).start(handler).await.unwrap();
    mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
    soon("the handler", calls.recv()).await.unwrap();
    let started = Instant::now();
    eventually("the handle to be closed", async || mq.state() == ConnectionState::Closed).await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(soon("the report", mq.close()).await.abandoned(), 1);
    assert_eq!(consumer.stats().in_flight, 0);
    fx.until_length(&queue, 1).await;
    fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_from_inside_a_handler_ends_in_time_on_rabbitmq() {
    close_inside(Broker::RabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_from_inside_a_handler_ends_in_time_in_memory() {
    close_inside(Broker::Memory).await;
}

/// What the caller of a close gives up on is finished all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_whose_future_is_dropped_goes_on_in_the_background() {
    let world = World::new().await;
    let mq = world.connect().await;
    let queue = world.fx.name("orders");
    mq.declare(&Topology::new().queue(Queue::new(queue.as_str()))).await.unwrap();
    // However slow this task is, the broker's goodbye cannot have come yet.
    world.proxy.stall();
    let dropped = tokio::time::timeout(Duration::ZERO, mq.close()).await;
    assert!(dropped.is_err());
    world.proxy.forward();
    eventually("the handle to be closed", async || mq.state() == ConnectionState::Closed).await;
    eventually("no socket", async || world.proxy.open() == 0).await;
    world.fx.clean_up().await;
}
