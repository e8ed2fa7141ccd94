//! Consuming from a quorum queue, one acknowledgement a message, against hand-written lapin.
//!
//! `cargo bench --bench consume`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use acemq::{AceMq, BytesCodec, Message};
use bytes::Bytes;
use futures::StreamExt;
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use support::{
    BODY, Rounds, WINDOW, delete_queue, fresh_quorum_queue, raw_channel, setting, timed,
};
use tokio::sync::Notify;

const RAW: &str = "acemq.bench.consume.raw";
const OURS: &str = "acemq.bench.consume.ours";
const PREFETCH: u16 = 200;

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 20_000);
    let rounds = setting("ACEMQ_BENCH_ROUNDS", 7);
    let (connection, channel) = raw_channel().await;
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();
    let bodies = vec![Bytes::from(vec![b'x'; BODY]); messages];

    let mut table = Rounds::new("consume");
    for round in 0..=rounds {
        for queue in [RAW, OURS] {
            fresh_quorum_queue(&channel, queue).await;
            let publisher = mq.publisher_with::<Bytes>("", queue, BytesCodec);
            assert_eq!(publisher.send_all(&bodies).await.confirmed(), messages);
        }
        let consuming = connection.create_channel().await.unwrap();
        let raw = timed(consume_raw(&consuming, messages)).await;
        consuming.close(200, "OK".into()).await.unwrap();
        let ours = consume_ours(&mq, messages).await;
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

async fn consume_raw(channel: &Channel, messages: usize) {
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut consumer = channel
        .basic_consume(RAW.into(), "raw".into(), options, FieldTable::default())
        .await
        .unwrap();
    for _ in 0..messages {
        let delivery = consumer.next().await.unwrap().unwrap();
        assert_eq!(delivery.data.len(), BODY);
        delivery.ack(BasicAckOptions::default()).await.unwrap();
    }
}

/// The clock runs from the subscription, without the declaring that a start does before it.
async fn consume_ours(mq: &AceMq, messages: usize) -> std::time::Duration {
    let (seen, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let started = std::time::Instant::now();
    let first = Arc::new(std::sync::OnceLock::new());
    let consumer = {
        let (seen, done, first) = (seen.clone(), done.clone(), first.clone());
        mq.consumer_with::<Bytes>(OURS, BytesCodec)
            .prefetch(PREFETCH)
            .start(move |message: Message<Bytes>| {
                first.get_or_init(std::time::Instant::now);
                assert_eq!(message.payload().len(), BODY);
                if seen.fetch_add(1, Ordering::Relaxed) + 1 == messages {
                    done.notify_one();
                }
                std::future::ready(Ok(()))
            })
            .await
            .unwrap()
    };
    done.notified().await;
    let time = first.get().map_or(started.elapsed(), std::time::Instant::elapsed);
    consumer.close().await;
    assert_eq!(usize::try_from(consumer.stats().acked).unwrap(), messages);
    time
}
