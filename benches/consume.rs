//! Consuming from a quorum queue, one acknowledgement a message, against hand-written lapin.
//!
//! `cargo bench --bench consume`; settings: `ACEMQ_BENCH_MESSAGES` (the backlog of each
//! round), `ACEMQ_BENCH_ROUNDS`, `ACEMQ_BENCH_BODY` (bytes of each message), `ACEMQ_BENCH_CONSUMERS`.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{AceMq, BytesCodec, Message};
use bytes::Bytes;
use futures::StreamExt;
use lapin::{
    Channel, Connection,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use support::{
    Rounds, WINDOW, body_size, delete_queue, fresh_quorum_queue, raw_channel, setting, timed,
};
use tokio::sync::Notify;

const RAW: &str = "acemq.bench.consume.raw";
const OURS: &str = "acemq.bench.consume.ours";
const PREFETCH: u16 = 200;

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 20_000);
    let rounds = setting("ACEMQ_BENCH_ROUNDS", 7);
    let consumers = setting("ACEMQ_BENCH_CONSUMERS", 1);
    let (connection, channel) = raw_channel().await;
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();
    let bodies = vec![Bytes::from(vec![b'x'; body_size()]); messages];

    let mut table = Rounds::new("consume");
    for round in 0..=rounds {
        for queue in [RAW, OURS] {
            fresh_quorum_queue(&channel, queue).await;
            let publisher = mq.publisher_with::<Bytes>("", queue, BytesCodec);
            assert_eq!(publisher.send_all(&bodies).await.confirmed(), messages);
        }
        let raw = consume_raw(&connection, consumers, messages).await;
        let ours = consume_ours(&mq, consumers, messages).await;
        if round > 0 {
            table.note(messages, raw, ours);
        }
    }
    table.finish();
    for queue in [RAW, OURS, &format!("{OURS}.dlq"), &format!("{OURS}.parked")] {
        delete_queue(&channel, queue).await;
    }
    mq.close().await;
}

/// Every consumer on a channel of its own, as the crate does it.
async fn consume_raw(connection: &Connection, consumers: usize, messages: usize) -> Duration {
    let mut channels = Vec::new();
    for _ in 0..consumers {
        channels.push(connection.create_channel().await.unwrap());
    }
    let (seen, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let time = timed(async {
        for channel in &channels {
            let consuming = consume_on(channel.clone(), seen.clone(), done.clone(), messages);
            tokio::spawn(consuming);
        }
        done.notified().await;
    })
    .await;
    for channel in channels {
        channel.close(200, "OK".into()).await.unwrap();
    }
    time
}

async fn consume_on(
    channel: Channel,
    seen: Arc<AtomicUsize>,
    done: Arc<Notify>,
    messages: usize,
) -> lapin::Result<()> {
    let size = body_size();
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = channel.basic_consume(RAW.into(), "raw".into(), options, arguments).await?;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        assert_eq!(delivery.data.len(), size);
        delivery.ack(BasicAckOptions::default()).await?;
        if seen.fetch_add(1, Ordering::Relaxed) + 1 == messages {
            done.notify_one();
        }
    }
    Ok(())
}

/// The clock runs from the first message, without the declaring that a start does before it.
async fn consume_ours(mq: &AceMq, consumers: usize, messages: usize) -> Duration {
    let (seen, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let first = Arc::new(std::sync::OnceLock::new());
    let size = body_size();
    let mut running = Vec::new();
    for _ in 0..consumers {
        let (seen, done, first) = (seen.clone(), done.clone(), first.clone());
        let consumer = mq.consumer_with::<Bytes>(OURS, BytesCodec).prefetch(PREFETCH).start(
            move |message: Message<Bytes>| {
                first.get_or_init(std::time::Instant::now);
                assert_eq!(message.payload().len(), size);
                if seen.fetch_add(1, Ordering::Relaxed) + 1 == messages {
                    done.notify_one();
                }
                std::future::ready(Ok(()))
            },
        );
        running.push(consumer.await.unwrap());
    }
    done.notified().await;
    let time = first.get().map(std::time::Instant::elapsed).unwrap();
    let mut acked = 0;
    for consumer in running {
        consumer.close().await;
        acked += consumer.stats().acked;
    }
    assert_eq!(usize::try_from(acked).unwrap(), messages);
    time
}
