//! Consuming in order per key, against plain queues with one consumer each in hand-written lapin;
//! and what lanes gain with a handler that takes 5 ms.
//!
//! `cargo bench --bench ordered`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`,
//! `ACEMQ_BENCH_PARTITIONS` (4).

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{AceMq, BytesCodec, Message, OrderedQueue};
use bytes::Bytes;
use futures::{StreamExt, stream};
use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    types::FieldTable,
};
use support::{BODY, Rounds, WINDOW, delete_queue, publish_raw, raw_channel, setting, timed};
use tokio::sync::Notify;

const NAME: &str = "acemq.bench.ordered";
const PREFETCH: u16 = 20;
const KEYS: u64 = 1000;

/// Counts messages, and tells when all have come.
#[derive(Clone, Default)]
struct Arrived {
    count: Arc<AtomicUsize>,
    all: Arc<Notify>,
}

impl Arrived {
    fn note(&self, messages: usize) {
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == messages {
            self.all.notify_one();
        }
    }
}

fn partitions() -> u32 {
    u32::try_from(setting("ACEMQ_BENCH_PARTITIONS", 4)).unwrap()
}

/// The key is the first eight bytes of the body.
fn key_of(body: &Bytes) -> String {
    format!("{:?}", &body[..8])
}

fn bodies(messages: usize) -> Vec<Bytes> {
    let body = |number: usize| {
        let mut body = vec![b'x'; BODY];
        body[..8].copy_from_slice(&(number as u64 % KEYS).to_be_bytes());
        Bytes::from(body)
    };
    (0..messages).map(body).collect()
}

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 10_000);
    let (_connection, channel) = raw_channel().await;
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();
    let bodies = bodies(messages);
    let mut table = Rounds::new("ordered");
    for round in 0..=setting("ACEMQ_BENCH_ROUNDS", 5) {
        let raw = raw(&channel, &bodies).await;
        let ours = ours(&mq, &channel, &bodies, 1, Duration::ZERO).await;
        if round > 0 {
            table.note(messages, raw, ours);
        }
    }
    let few = &bodies[..400];
    for lanes in [1, 4, 16] {
        let time = ours(&mq, &channel, few, lanes, Duration::from_millis(5)).await;
        let rate = few.len() as f64 / time.as_secs_f64();
        println!("handler of 5 ms, {} partitions, {lanes} lanes each: {rate:.0}/s", partitions());
    }
    clean(&channel).await;
    for partition in 0..partitions() {
        delete_queue(&channel, &raw_queue(partition)).await;
    }
    mq.close().await;
    table.finish();
}

fn raw_queue(partition: u32) -> String {
    format!("{NAME}.raw.{partition}")
}

async fn clean(channel: &Channel) {
    delete_queue(channel, &format!("{NAME}.partitions")).await;
    for partition in 0..partitions() {
        for suffix in ["", ".dlq", ".parked"] {
            delete_queue(channel, &format!("{NAME}.p{partition}{suffix}")).await;
        }
    }
}

/// Plain classic queues with one consumer each, which acknowledges one by one.
async fn raw(channel: &Channel, bodies: &[Bytes]) -> Duration {
    let count = usize::try_from(partitions()).unwrap();
    for partition in 0..partitions() {
        let queue = raw_queue(partition);
        delete_queue(channel, &queue).await;
        let options = QueueDeclareOptions::durable();
        channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
    }
    for (partition, part) in (0..).zip(bodies.chunks(bodies.len().div_ceil(count))) {
        publish_raw(channel, &raw_queue(partition), part).await;
    }
    let connection =
        Connection::connect(&support::url(), ConnectionProperties::default()).await.unwrap();
    let arrived = Arrived::default();
    let mut tasks = Vec::new();
    let time = timed(async {
        for partition in 0..partitions() {
            let consuming = connection.create_channel().await.unwrap();
            consuming.basic_qos(PREFETCH, BasicQosOptions::default()).await.unwrap();
            let (queue, options) = (raw_queue(partition), BasicConsumeOptions::default());
            let mut deliveries = consuming
                .basic_consume(queue.into(), "".into(), options, FieldTable::default())
                .await
                .unwrap();
            let (arrived, messages) = (arrived.clone(), bodies.len());
            tasks.push(tokio::spawn(async move {
                while let Some(Ok(delivery)) = deliveries.next().await {
                    delivery.acker.ack(BasicAckOptions::default()).await.unwrap();
                    arrived.note(messages);
                }
            }));
        }
        arrived.all.notified().await;
    })
    .await;
    connection.close(200, "done".into()).await.unwrap();
    for task in tasks {
        task.abort();
    }
    time
}

/// From the subscription until everything is handled.
async fn ours(
    mq: &AceMq,
    channel: &Channel,
    bodies: &[Bytes],
    lanes: usize,
    work: Duration,
) -> Duration {
    clean(channel).await;
    let builder = || {
        let builder = mq.ordered_with::<Bytes>(NAME, BytesCodec).partitions(partitions());
        builder.keyed_by(key_of).prefetch(PREFETCH).concurrency_per_partition(lanes)
    };
    let sending: OrderedQueue<Bytes> = builder().declare().await.unwrap();
    // The order of the sends is of no interest here.
    let mut sends =
        stream::iter(bodies.iter().map(|body| sending.send(body))).buffer_unordered(WINDOW);
    while let Some(sent) = sends.next().await {
        sent.unwrap();
    }
    drop(sends);
    let (arrived, messages) = (Arrived::default(), bodies.len());
    let told = arrived.clone();
    let mut queue = None;
    let time = timed(async {
        let consuming = builder().consume(move |_: Message<Bytes>| {
            let told = told.clone();
            async move {
                if !work.is_zero() {
                    tokio::time::sleep(work).await;
                }
                told.note(messages);
                Ok(())
            }
        });
        queue = Some(consuming.await.unwrap());
        arrived.all.notified().await;
    })
    .await;
    if let Some(queue) = queue {
        queue.close().await;
    }
    time
}
