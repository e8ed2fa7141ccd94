//! How many messages a second can be scheduled, against hand-written pipelined lapin that publishes
//! the same messages, and how exactly they come.
//!
//! `cargo bench --bench scheduler`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`.

mod support;

use std::time::Duration;

use acemq::{AceMq, Ladder, Message, Queue, Topology};
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, stream};
use support::{
    BODY, Rounds, WINDOW, delete_queue, fresh_quorum_queue, publish_raw, raw_channel, setting,
    timed,
};
use tokio::sync::mpsc;

const RAW: &str = "acemq.bench.scheduler.raw";
const TARGET: &str = "acemq.bench.scheduler.target";

#[tokio::main]
async fn main() {
    let (_connection, channel) = raw_channel().await;
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();
    mq.declare(&Topology::new().queue(Queue::new(TARGET))).await.unwrap();

    let ladders = [(Ladder::Family, "acemq.bench.schedule"), (Ladder::Binary, "acemq.bench.delay")];
    for (ladder, prefix) in ladders {
        accuracy(&mq, ladder, prefix).await;
    }

    let messages = setting("ACEMQ_BENCH_MESSAGES", 10_000);
    let bodies = vec![Bytes::from(vec![b'x'; BODY]); messages];
    let (ladder, prefix) = ladders[1];
    let scheduler = mq.scheduler().ladder(ladder).prefix(prefix).without_delivery().await.unwrap();
    let mut table = Rounds::new("scheduler");
    for round in 0..=setting("ACEMQ_BENCH_ROUNDS", 5) {
        fresh_quorum_queue(&channel, RAW).await;
        let raw = timed(publish_raw(&channel, RAW, &bodies)).await;
        // Exactly two to the twelfth seconds: a rung of its own, which is emptied after the round.
        let due = Utc::now() + TimeDelta::seconds(1 << 12);
        let ours = timed(async {
            let sends = bodies.iter().map(|body| {
                let content = ("application/octet-stream", body.clone());
                scheduler.at_raw(due, "", TARGET, content, acemq::Envelope::new())
            });
            let mut sends = stream::iter(sends).buffer_unordered(WINDOW);
            while let Some(sent) = sends.next().await {
                sent.unwrap();
            }
        })
        .await;
        for rung in 0..25 {
            let queue = format!("{prefix}.rung.{rung}");
            channel
                .queue_purge(queue.as_str().into(), lapin::options::QueuePurgeOptions::default())
                .await
                .unwrap();
        }
        if round > 0 {
            table.note(messages, raw, ours);
        }
    }
    for (_, prefix) in ladders {
        let names = (0..25).map(|rung| format!("rung.{rung}"));
        let family = ["due", "due.dlq", "due.parked", "1h", "10m", "1m", "10s", "1s"];
        for name in names.chain(family.map(str::to_owned)) {
            delete_queue(&channel, &format!("{prefix}.{name}")).await;
        }
    }
    for queue in [RAW, TARGET, &format!("{TARGET}.dlq"), &format!("{TARGET}.parked")] {
        delete_queue(&channel, queue).await;
    }
    mq.close().await;
    table.finish();
}

/// Schedules messages over some seconds and prints how late each came; negative is early.
async fn accuracy(mq: &AceMq, ladder: Ladder, prefix: &str) {
    const MESSAGES: u64 = 300;
    let scheduler = mq.scheduler().ladder(ladder).prefix(prefix).await.unwrap();
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let consumer = mq
        .consumer::<DateTime<Utc>>(TARGET)
        .concurrency(20)
        .start(move |due: Message<DateTime<Utc>>| {
            let sent = sender.send(Utc::now() - due.into_payload());
            async move { Ok(sent?) }
        })
        .await
        .unwrap();
    for number in 0..MESSAGES {
        let due = Utc::now() + Duration::from_millis(500 + 41 * number);
        scheduler.at(due, "", TARGET, &due).await.unwrap();
    }
    let mut late = Vec::new();
    for _ in 0..MESSAGES {
        late.push(arrivals.recv().await.unwrap().num_milliseconds());
    }
    late.sort_unstable();
    let at = |share: usize| late[(late.len() - 1) * share / 100];
    println!(
        "{ladder:?}: late by min {} ms, p50 {} ms, p99 {} ms, max {} ms; {} hops for {MESSAGES} messages",
        at(0),
        at(50),
        at(99),
        at(100),
        scheduler.hops(),
    );
    scheduler.close().await;
    consumer.close().await;
}
