//! From the commit of an outbox record to its handler, on an idle system.
//!
//! `cargo bench --bench latency`; settings: `ACEMQ_BENCH_MESSAGES`, `DATABASE_URL`.

mod support;

use std::time::{Duration, Instant};

use acemq::{AceMq, BytesCodec, Message, OutboxRecord, OutboxRelay, PostgresOutbox};
use bytes::Bytes;
use sqlx::postgres::PgPoolOptions;
use support::{BODY, delete_queue, fresh_quorum_queue, raw_channel, setting};
use tokio::sync::mpsc;

const QUEUE: &str = "acemq.bench.latency";

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 500);
    let (_connection, channel) = raw_channel().await;
    fresh_quorum_queue(&channel, QUEUE).await;
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into());
    let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix("acemq_bench_").unwrap();
    outbox.migrate().await.unwrap();
    sqlx::raw_sql("TRUNCATE acemq_bench_outbox").execute(&pool).await.unwrap();
    let mq = AceMq::connect(support::url()).await.unwrap();
    let (handled, mut handler) = mpsc::unbounded_channel();
    let consumer = mq
        .consumer_with::<Bytes>(QUEUE, BytesCodec)
        .start(move |_: Message<Bytes>| {
            let sent = handled.send(Instant::now());
            async move { Ok(sent?) }
        })
        .await
        .unwrap();
    let relay = OutboxRelay::new(&mq, outbox.clone()).start();

    let body = Bytes::from(vec![b'x'; BODY]);
    let mut pauses = tokio::time::interval(Duration::from_millis(20));
    let mut times = Vec::with_capacity(messages);
    for number in 0..messages + 20 {
        pauses.tick().await;
        let mut tx = pool.begin().await.unwrap();
        let record = OutboxRecord::bytes("", QUEUE, "application/octet-stream", body.clone());
        outbox.add(&mut tx, record).await.unwrap();
        tx.commit().await.unwrap();
        let committed = Instant::now();
        outbox.wake();
        let time = handler.recv().await.unwrap().duration_since(committed);
        // The first ones warm everything up.
        if number >= 20 {
            times.push(time);
        }
    }
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1000.0;
    println!("commit to handler over {messages} messages on an idle system, milliseconds:");
    println!("p50 {:.2}  p90 {:.2}  p99 {:.2}  max {:.2}", at(50), at(90), at(99), at(100));
    relay.close().await;
    consumer.close().await;
    for queue in [QUEUE, &format!("{QUEUE}.dlq"), &format!("{QUEUE}.parked")] {
        delete_queue(&channel, queue).await;
    }
    mq.close().await;
    println!("latency p50_ms={:.2} p99_ms={:.2}", at(50), at(99));
}
