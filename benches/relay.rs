//! The outbox relay from PostgreSQL to a quorum queue, against hand-written pipelined lapin that
//! publishes the same messages in the same run.
//!
//! `cargo bench --bench relay`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`,
//! `DATABASE_URL`.

mod support;

use std::{collections::VecDeque, time::Duration};

use acemq::{AceMq, OutboxRecord, OutboxRelay, PostgresOutbox};
use bytes::Bytes;
use lapin::{Channel, Confirmation, options::BasicPublishOptions};
use sqlx::{PgPool, postgres::PgPoolOptions};
use support::{
    BODY, Rounds, WINDOW, delete_queue, fresh_quorum_queue, raw_channel, raw_properties, setting,
    timed,
};

const RAW: &str = "acemq.bench.relay.raw";
const OURS: &str = "acemq.bench.relay.ours";
const KEYS: usize = 1000;

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 20_000);
    let rounds = setting("ACEMQ_BENCH_ROUNDS", 5);
    let (_connection, channel) = raw_channel().await;
    let pool = pool().await;
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix("acemq_bench_").unwrap();
    outbox.migrate().await.unwrap();
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();

    for (name, keys) in [("relay", None), ("relay_ordered", Some(KEYS))] {
        let mut table = Rounds::new(name);
        for round in 0..=rounds {
            fresh_quorum_queue(&channel, RAW).await;
            fresh_quorum_queue(&channel, OURS).await;
            fill(&pool, &outbox, messages, keys).await;
            let raw = timed(publish_raw(&channel, messages)).await;
            let ours = timed(relay(&mq, &outbox, messages)).await;
            let arrived = mq.queue_length(OURS).await.unwrap();
            assert_eq!(arrived, Some(u64::try_from(messages).unwrap()));
            if round > 0 {
                table.note(messages, raw, ours);
            }
        }
        table.finish();
    }
    sqlx::raw_sql("TRUNCATE acemq_bench_outbox").execute(&pool).await.unwrap();
    delete_queue(&channel, RAW).await;
    delete_queue(&channel, OURS).await;
    mq.close().await;
}

async fn pool() -> PgPool {
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into());
    PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap()
}

async fn fill(pool: &PgPool, outbox: &PostgresOutbox, messages: usize, keys: Option<usize>) {
    sqlx::raw_sql("TRUNCATE acemq_bench_outbox").execute(pool).await.unwrap();
    let body = Bytes::from(vec![b'x'; BODY]);
    let records: Vec<_> = (0..messages)
        .map(|number| {
            let record = OutboxRecord::bytes("", OURS, "application/octet-stream", body.clone());
            match keys {
                Some(keys) => record.ordering_key(format!("key-{}", number % keys)),
                None => record,
            }
        })
        .collect();
    for part in records.chunks(1000) {
        let mut tx = pool.begin().await.unwrap();
        outbox.add_all(&mut tx, part.to_vec()).await.unwrap();
        tx.commit().await.unwrap();
    }
    sqlx::raw_sql("ANALYZE acemq_bench_outbox").execute(pool).await.unwrap();
}

/// From the start of a relay to the last mark.
async fn relay(mq: &AceMq, outbox: &PostgresOutbox, messages: usize) {
    let relay = OutboxRelay::new(mq, outbox.clone())
        .batch_size(1000)
        .concurrency(WINDOW)
        .retention(None)
        .start();
    let mut look = tokio::time::interval(Duration::from_millis(5));
    while relay.published() < u64::try_from(messages).unwrap() {
        look.tick().await;
    }
    relay.close().await;
}

async fn publish_raw(channel: &Channel, messages: usize) {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let body = vec![b'x'; BODY];
    let mut window = VecDeque::with_capacity(WINDOW);
    for _ in 0..messages {
        if window.len() == WINDOW {
            confirmed(&mut window).await;
        }
        let id = uuid::Uuid::new_v4().to_string();
        let properties = raw_properties(&id, RAW);
        let confirm =
            channel.basic_publish("".into(), RAW.into(), options, &body, properties).await;
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
