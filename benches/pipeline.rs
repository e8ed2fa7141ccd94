//! Messages through three steps, against the same three queues in hand-written lapin: consume,
//! publish confirmed and mandatory, acknowledge.
//!
//! `cargo bench --bench pipeline`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use acemq::{AceMq, BytesCodec, Message};
use bytes::Bytes;
use futures::StreamExt;
use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
        ConfirmSelectOptions,
    },
    types::FieldTable,
};
use support::{
    BODY, Rounds, WINDOW, delete_queue, fresh_quorum_queue, publish_raw, raw_channel,
    raw_properties, setting, timed,
};
use tokio::sync::Notify;

const RAW: [&str; 3] =
    ["acemq.bench.pipeline.raw.a", "acemq.bench.pipeline.raw.b", "acemq.bench.pipeline.raw.c"];
const NAME: &str = "acemq.bench.pipeline";
const STEPS: [&str; 3] = ["a", "b", "c"];

/// Messages that each step has in hand.
const HANDS: u16 = 64;

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 5_000);
    let (_connection, channel) = raw_channel().await;
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();
    let bodies = vec![Bytes::from(vec![b'x'; BODY]); messages];
    let mut table = Rounds::new("pipeline");
    for round in 0..=setting("ACEMQ_BENCH_ROUNDS", 5) {
        let raw = raw(&channel, &bodies).await;
        let ours = ours(&mq, &channel, &bodies).await;
        if round > 0 {
            table.note(messages, raw, ours);
        }
    }
    for queue in RAW {
        delete_queue(&channel, queue).await;
    }
    for step in STEPS {
        for suffix in ["", ".dlq", ".parked"] {
            delete_queue(&channel, &format!("{NAME}.{step}{suffix}")).await;
        }
    }
    mq.close().await;
    table.finish();
}

/// Counts the ends of runs, and tells when all have come.
#[derive(Clone, Default)]
struct Ends {
    count: Arc<AtomicUsize>,
    all: Arc<Notify>,
}

impl Ends {
    fn note(&self, messages: usize) {
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == messages {
            self.all.notify_one();
        }
    }
}

/// The same by hand: a channel for each step's deliveries, one for its publishes, and as many
/// messages in hand.
async fn raw(channel: &Channel, bodies: &[Bytes]) -> std::time::Duration {
    let connection =
        Connection::connect(&support::url(), ConnectionProperties::default()).await.unwrap();
    let ends = Ends::default();
    let mut tasks = Vec::new();
    for queue in RAW {
        fresh_quorum_queue(channel, queue).await;
    }
    for (index, queue) in RAW.into_iter().enumerate() {
        let (consuming, publishing) = (
            connection.create_channel().await.unwrap(),
            connection.create_channel().await.unwrap(),
        );
        publishing.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        consuming.basic_qos(HANDS, BasicQosOptions::default()).await.unwrap();
        let deliveries = consuming
            .basic_consume(
                queue.into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .unwrap();
        let (ends, messages) = (ends.clone(), bodies.len());
        tasks.push(tokio::spawn(deliveries.for_each_concurrent(
            usize::from(HANDS),
            move |delivery| {
                let (publishing, ends) = (publishing.clone(), ends.clone());
                async move {
                    let Ok(delivery) = delivery else { return };
                    if let Some(next) = RAW.get(index + 1) {
                        let id = uuid::Uuid::new_v4().to_string();
                        let options = BasicPublishOptions { mandatory: true, immediate: false };
                        let properties = raw_properties(&id, next);
                        let confirm = publishing
                            .basic_publish(
                                "".into(),
                                (*next).into(),
                                options,
                                &delivery.data,
                                properties,
                            )
                            .await
                            .unwrap();
                        confirm.await.unwrap();
                    }
                    delivery.acker.ack(BasicAckOptions::default()).await.unwrap();
                    if index == RAW.len() - 1 {
                        ends.note(messages);
                    }
                }
            },
        )));
    }
    let time = timed(async {
        publish_raw(channel, RAW[0], bodies).await;
        ends.all.notified().await;
    })
    .await;
    connection.close(200, "done".into()).await.unwrap();
    for task in tasks {
        task.abort();
    }
    time
}

async fn ours(mq: &AceMq, channel: &Channel, bodies: &[Bytes]) -> std::time::Duration {
    for step in STEPS {
        delete_queue(channel, &format!("{NAME}.{step}")).await;
    }
    let (ends, messages) = (Ends::default(), bodies.len());
    let told = ends.clone();
    let pass = |message: Message<Bytes>| async move { Ok(Some(message.into_payload())) };
    let pipeline = mq
        .pipeline_with::<Bytes, _>(NAME, BytesCodec)
        .concurrency(usize::from(HANDS))
        .prefetch(HANDS)
        .step("a", pass)
        .step("b", pass)
        .step("c", move |_: Message<Bytes>| {
            told.note(messages);
            async { Ok(None::<Bytes>) }
        })
        .build()
        .await
        .unwrap();
    let entry = mq.publisher_with::<Bytes>(NAME, "a", BytesCodec);
    let time = timed(async {
        assert_eq!(entry.send_all(bodies).await.confirmed(), messages);
        ends.all.notified().await;
    })
    .await;
    pipeline.close().await;
    time
}
