//! Publishing to a quorum queue, confirmed and mandatory, against hand-written pipelined lapin.
//!
//! `cargo bench --bench publish`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`.

mod support;

use std::collections::VecDeque;

use acemq::{AceMq, BytesCodec};
use bytes::Bytes;
use lapin::{Channel, Confirmation, options::BasicPublishOptions};
use support::{
    BODY, Rounds, WINDOW, delete_queue, fresh_quorum_queue, raw_channel, setting, timed,
};

const RAW: &str = "acemq.bench.publish.raw";
const OURS: &str = "acemq.bench.publish.ours";

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 20_000);
    let rounds = setting("ACEMQ_BENCH_ROUNDS", 7);
    let (_connection, channel) = raw_channel().await;
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();
    let publisher = mq.publisher_with::<Bytes>("", OURS, BytesCodec);
    let bodies = vec![Bytes::from(vec![b'x'; BODY]); messages];

    let mut table = Rounds::new("publish");
    for round in 0..=rounds {
        fresh_quorum_queue(&channel, RAW).await;
        fresh_quorum_queue(&channel, OURS).await;
        let raw = timed(publish_raw(&channel, &bodies)).await;
        let ours = timed(async {
            assert_eq!(publisher.send_all(&bodies).await.confirmed(), messages);
        })
        .await;
        // The first round warms both up.
        if round > 0 {
            table.note(messages, raw, ours);
        }
    }
    table.finish();
    delete_queue(&channel, RAW).await;
    delete_queue(&channel, OURS).await;
    mq.close().await;
}

async fn publish_raw(channel: &Channel, bodies: &[Bytes]) {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let mut window = VecDeque::with_capacity(WINDOW);
    for body in bodies {
        if window.len() == WINDOW {
            confirmed(&mut window).await;
        }
        let id = uuid::Uuid::new_v4().to_string();
        let properties = support::raw_properties(&id, RAW);
        let confirm = channel.basic_publish("".into(), RAW.into(), options, body, properties).await;
        window.push_back(confirm.unwrap());
    }
    while !window.is_empty() {
        confirmed(&mut window).await;
    }
}

async fn confirmed(window: &mut VecDeque<lapin::PublisherConfirm>) {
    if let Some(confirm) = window.pop_front() {
        assert!(matches!(confirm.await, Ok(Confirmation::Ack(None))));
    }
}
