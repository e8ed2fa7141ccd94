//! From the commit of a transaction to the handler of its message, on an idle system.
//!
//! `cargo bench --bench latency`; settings: `ACEMQ_BENCH_MESSAGES`, `DATABASE_URL`. The relay is
//! woken in its process; the last line has milliseconds, not a ratio.

mod support;

use std::time::{Duration, Instant};

use acemq::{AceMq, Message, OutboxRecord, OutboxRelay, PostgresOutbox};
use sqlx::postgres::PgPoolOptions;
use support::{delete_queue, fresh_quorum_queue, raw_channel, setting};

const QUEUE: &str = "acemq.bench.latency";

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 500);
    let (_connection, channel) = raw_channel().await;
    fresh_quorum_queue(&channel, QUEUE).await;
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into());
    let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix("acemq_bench_latency_").unwrap();
    outbox.migrate().await.unwrap();
    sqlx::raw_sql("TRUNCATE acemq_bench_latency_outbox").execute(&pool).await.unwrap();

    let mq = AceMq::connect(support::url()).await.unwrap();
    let relay = OutboxRelay::new(&mq, outbox.clone()).poll_interval(Duration::from_mins(1)).start();
    let (sender, mut handled) = tokio::sync::mpsc::unbounded_channel();
    let consumer = mq
        .consumer::<u64>(QUEUE)
        .start(move |message: Message<u64>| {
            let sent = sender.send((*message.payload(), Instant::now()));
            async move { Ok(sent?) }
        })
        .await
        .unwrap();

    let mut times = Vec::with_capacity(messages);
    for number in 0..messages as u64 + 20 {
        let mut tx = pool.begin().await.unwrap();
        outbox.add(&mut tx, OutboxRecord::json("", QUEUE, &number).unwrap()).await.unwrap();
        tx.commit().await.unwrap();
        let committed = Instant::now();
        outbox.wake();
        let (came, at) = handled.recv().await.unwrap();
        assert_eq!(came, number);
        // The first ones warm everything up.
        if number >= 20 {
            times.push(at.duration_since(committed).as_secs_f64() * 1000.0);
        }
        // An idle system: everything has come to rest before the next one.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    consumer.close().await;
    relay.close().await;
    delete_queue(&channel, QUEUE).await;
    mq.close().await;
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    println!("commit to handler, {messages} messages, ms: min {:.2} max {:.2}", at(0), at(100));
    println!("latency p50={:.2} p99={:.2}", at(50), at(99));
}
