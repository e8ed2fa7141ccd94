//! Publishing to a quorum queue, confirmed and mandatory, against hand-written pipelined lapin.
//!
//! `cargo bench --bench publish`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`,
//! `ACEMQ_BENCH_BODY` (bytes of each message).

mod support;

use acemq::{AceMq, BytesCodec};
use bytes::Bytes;
use support::{
    Rounds, WINDOW, body_size, delete_queue, fresh_quorum_queue, publish_raw, raw_channel, setting,
    timed,
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
    let bodies = vec![Bytes::from(vec![b'x'; body_size()]); messages];

    let mut table = Rounds::new("publish");
    for round in 0..=rounds {
        fresh_quorum_queue(&channel, RAW).await;
        fresh_quorum_queue(&channel, OURS).await;
        let raw = timed(publish_raw(&channel, RAW, &bodies)).await;
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
