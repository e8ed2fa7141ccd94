//! The retry ladder on paused time: the exact schedule, for many messages at once.

mod support;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use acemq::{AceMq, HandlerError, Message, Queue, RetryPolicy, Topology};
use support::unique;
use tokio::time::Instant;

const MESSAGES: u32 = 10_000;

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_messages_climb_three_rungs_exactly_on_time() {
    let mq = AceMq::connect(format!("memory://{}", unique("ladder"))).await.unwrap();
    mq.declare(&Topology::new().queue(Queue::new("orders"))).await.unwrap();
    let numbers: Vec<u32> = (0..MESSAGES).collect();
    let outcome = mq.publisher::<u32>("", "orders").send_all(&numbers).await;
    assert_eq!(outcome.confirmed(), numbers.len());

    let started = Instant::now();
    let attempts: Arc<Mutex<BTreeMap<(i32, Duration), u32>>> = Arc::default();
    let consumer = {
        let attempts = attempts.clone();
        mq.consumer::<u32>("orders")
            .retry(RetryPolicy::exponential(4, minutes(1), minutes(4)))
            .start(move |message: Message<u32>| {
                let when = (message.attempt(), started.elapsed());
                *attempts.lock().unwrap().entry(when).or_default() += 1;
                async { Err(HandlerError::retry("not today")) }
            })
            .await
            .unwrap()
    };
    let dead_letters = "orders.dlq";
    let mut look = tokio::time::interval(Duration::from_secs(10));
    while mq.queue_length(dead_letters).await.unwrap() != Some(u64::from(MESSAGES)) {
        look.tick().await;
        assert!(started.elapsed() < minutes(30), "{:?}", consumer.stats());
    }

    // Waits in the broker are exact: 1, 2 and 4 minutes after one another.
    let expected: BTreeMap<_, _> = [(1, 0), (2, 1), (3, 3), (4, 7)]
        .into_iter()
        .map(|(attempt, at)| ((attempt, minutes(at)), MESSAGES))
        .collect();
    assert_eq!(*attempts.lock().unwrap(), expected);
    let stats = consumer.stats();
    assert_eq!((stats.retried, stats.dead_lettered), (30_000, 10_000));
    assert_eq!((stats.rung_missing, stats.set_aside_failed), (0, 0));
    mq.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_the_consumer_is_cut_short_by_a_stop_and_spends_no_attempt() {
    let mq = AceMq::connect(format!("memory://{}", unique("ladder"))).await.unwrap();
    mq.declare(&Topology::new().queue(Queue::new("orders"))).await.unwrap();
    mq.publisher::<u32>("", "orders").send(&1).await.unwrap();
    let (seen, mut attempts) = tokio::sync::mpsc::unbounded_channel();
    let start = async || {
        let seen = seen.clone();
        mq.consumer::<u32>("orders")
            .retry(RetryPolicy::fixed(3, Duration::from_secs(20)))
            .start(move |message: Message<u32>| {
                let sent = seen.send(message.attempt());
                async move {
                    sent?;
                    Err(HandlerError::retry("again"))
                }
            })
            .await
            .unwrap()
    };
    let first = start().await;
    assert_eq!(attempts.recv().await, Some(1));
    let stopping = Instant::now();
    first.close().await;
    assert!(stopping.elapsed() < Duration::from_secs(1), "the wait held the close up");
    let _second = start().await;
    assert_eq!(attempts.recv().await, Some(1), "the stopped wait spent an attempt");
    assert_eq!(attempts.recv().await, Some(2));
}
