//! `memory://` under load: nothing in it is quadratic, and a flood fills no memory.
//!
//! The first would not end if the work for one message grew with the messages that wait; each test
//! has a limit far beyond what it needs. `ACEMQ_SOAK_FACTOR` multiplies the load (default 1).

use std::{future::Future, time::Duration};

use acemq::{
    AceMq, BytesCodec, Exchange, HandlerError, Overflow, Queue, RetryPolicy, Topology,
    testing::MemoryBroker,
};
use bytes::Bytes;
use tokio::sync::Semaphore;

/// Far more than a slow machine with other work needs, far less than quadratic work takes.
const LIMIT: Duration = Duration::from_mins(4);

fn factor() -> usize {
    let factor = std::env::var("ACEMQ_SOAK_FACTOR").unwrap_or_else(|_| "1".to_owned());
    factor.parse().expect("ACEMQ_SOAK_FACTOR is a number")
}

async fn within_the_limit<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work).await.expect("this is more than linear")
}

async fn connected(url: &str) -> AceMq {
    // Some handlers here never end.
    AceMq::options(url).shutdown_timeout(Duration::from_millis(100)).connect().await.unwrap()
}

async fn declared(name: &str, topology: Topology) -> (AceMq, MemoryBroker) {
    let url = format!("memory://load-{name}");
    let mq = connected(&url).await;
    mq.declare(&topology).await.unwrap();
    (mq, MemoryBroker::of(&url))
}

/// Publishes bodies of a size, a thousand at a time.
async fn publish(mq: &AceMq, exchange: &str, key: &str, messages: usize, size: usize) {
    let publisher = mq.publisher_with::<Bytes>(exchange, key, BytesCodec);
    let batch = vec![Bytes::from(vec![7; size]); 1000];
    for _ in 0..messages / batch.len() {
        assert!(publisher.send_all(&batch).await.first_failure().is_none());
    }
}

/// Counts down, and lets a test wait for zero.
struct Countdown(Semaphore);

impl Countdown {
    async fn until(&self, messages: usize) {
        let messages = u32::try_from(messages).unwrap();
        let done = within_the_limit(self.0.acquire_many(messages)).await;
        done.unwrap().forget();
    }
}

fn countdown() -> std::sync::Arc<Countdown> {
    std::sync::Arc::new(Countdown(Semaphore::new(0)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_waiting_messages_are_published_requeued_and_consumed() {
    let messages = 100_000 * factor();
    let everything = Queue::classic("backlog")
        .max_priority(4)
        .message_ttl(Duration::from_hours(1))
        .max_length(u32::MAX, Overflow::DropHead);
    for (name, queue) in [("quorum", Queue::quorum("backlog")), ("everything", everything)] {
        let (mq, broker) = declared(name, Topology::new().queue(queue)).await;
        within_the_limit(publish(&mq, "", "backlog", messages, 10)).await;
        assert_eq!(mq.queue_length("backlog").await.unwrap(), Some(messages as u64));

        // One that is torn off with all it can hold gives it back.
        let holding = mq
            .consumer_with::<Bytes>("backlog", BytesCodec)
            .prefetch(u16::MAX)
            .start(|_| std::future::pending())
            .await
            .unwrap();
        broker.disconnect_all("with a lot in hand");
        drop(holding);

        let done = countdown();
        let counted = std::sync::Arc::clone(&done);
        let again = connected(&format!("memory://load-{name}")).await;
        mq.close().await;
        let consumer = again
            .consumer_with::<Bytes>("backlog", BytesCodec)
            .prefetch(1000)
            .concurrency(100)
            .start(move |_| {
                counted.0.add_permits(1);
                async { Ok(()) }
            })
            .await
            .unwrap();
        done.until(messages).await;
        consumer.close().await;
        again.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_queues_with_bindings_are_used_and_go() {
    let queues = 1000 * factor();
    let mut topology = Topology::new()
        .exchange(Exchange::direct("by-name").auto_delete())
        .exchange(Exchange::topic("by-topic").auto_delete())
        .exchange(Exchange::fanout("all").auto_delete());
    for number in 0..queues {
        let name = format!("q{number}");
        topology = topology
            .queue(Queue::classic(name.as_str()).expires(Duration::from_hours(1)))
            .bind(name.as_str(), "by-name", name.as_str())
            .bind(name.as_str(), "by-topic", format!("{name}.#"))
            .bind(name.as_str(), "all", "");
    }
    let (mq, broker) = within_the_limit(declared("queues", topology)).await;
    within_the_limit(async {
        for _ in 0..20 {
            mq.publisher::<u32>("all", "").send(&1).await.unwrap();
        }
        for number in 0..queues {
            let name = format!("q{number}");
            mq.publisher::<u32>("by-name", name.as_str()).send(&1).await.unwrap();
            mq.publisher::<u32>("by-topic", format!("{name}.x")).send(&1).await.unwrap();
            assert_eq!(mq.queue_length(&name).await.unwrap(), Some(22));
        }
        for number in 0..queues {
            mq.delete_queue(&format!("q{number}")).await.unwrap();
        }
    })
    .await;
    assert!(broker.queue_names().is_empty());
    mq.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_messages_expire_at_one_time() {
    let messages = 100_000 * factor();
    let limited = Queue::quorum("due").max_length(1000, Overflow::DropHead);
    for (name, due, messages, left) in [
        ("expiry", Queue::quorum("due"), messages, messages as u64),
        ("expiry-limited", limited, messages / 2, 1000),
    ] {
        let waiting = Queue::classic("waiting")
            .message_ttl(Duration::from_hours(1))
            .dead_letter_to("", "due");
        let (mq, _broker) = declared(name, Topology::new().queue(waiting).queue(due)).await;
        publish(&mq, "", "waiting", messages, 1).await;
        tokio::time::sleep(Duration::from_hours(2)).await;
        assert_eq!(mq.queue_length("due").await.unwrap(), Some(left));
        mq.close().await;
    }
}

/// What the process has in memory.
#[cfg(target_os = "linux")]
fn resident_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

/// Four times what may be left of it.
#[cfg(target_os = "linux")]
const FLOOD_MEGABYTES: usize = 120;

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_leaves_no_more_than_the_limits_allow() {
    let dropping = Queue::classic("dropping").max_length(100, Overflow::DropHead);
    let by_bytes = Queue::quorum("by-bytes").max_length_bytes(100_000, Overflow::DropHead);
    let dead = Queue::classic("dead").max_length_bytes(100_000, Overflow::DropHead);
    let topology = Topology::new()
        .exchange(Exchange::fanout("flood"))
        .queue(dropping.dead_letter_to("", "dead"))
        .queue(by_bytes)
        .queue(Queue::classic("gone").message_ttl(Duration::ZERO))
        .queue(dead)
        .bind("dropping", "flood", "")
        .bind("by-bytes", "flood", "")
        .bind("gone", "flood", "");
    let (mq, _broker) = declared("flood", topology).await;
    // A handler that hangs holds its prefetch, and no more.
    let hanging = mq
        .consumer_with::<Bytes>("by-bytes", BytesCodec)
        .prefetch(10)
        .start(|_| std::future::pending())
        .await
        .unwrap();
    // One that fails for ever, with a queue of dead letters that is full.
    let failing = mq
        .consumer_with::<Bytes>("dead", BytesCodec)
        .retry(RetryPolicy::none())
        .start(|_| async { Err(HandlerError::retry("never")) })
        .await
        .unwrap();
    failing.close().await;

    publish(&mq, "flood", "", 1000, 1000).await;
    let before = resident_megabytes();
    let publisher = mq.publisher_with::<Bytes>("flood", "", BytesCodec);
    for _ in 0..FLOOD_MEGABYTES * factor() * 10 {
        // Each batch has its own bytes.
        let batch: Vec<_> = (0..100).map(|_| Bytes::from(vec![7; 1000])).collect();
        assert!(publisher.send_all(&batch).await.first_failure().is_none());
    }
    let grown = resident_megabytes().saturating_sub(before);
    assert!(grown < FLOOD_MEGABYTES as u64 / 4, "{grown} MB of the flood are left");
    for (queue, most) in [("dropping", 100), ("by-bytes", 100), ("dead", 100), ("gone", 0)] {
        assert!(mq.queue_length(queue).await.unwrap().unwrap() <= most, "{queue}");
    }
    drop(hanging);
    mq.close().await;
}
