//! From a table to a quorum queue, confirmed and mandatory, by one relay, against hand-written
//! pipelined lapin that publishes the same messages without a table.
//!
//! `cargo bench --bench relay`; settings: `ACEMQ_BENCH_MESSAGES` (rows of a round),
//! `ACEMQ_BENCH_ROUNDS`, `ACEMQ_BENCH_FORMS` (default `postgres,ordered,few,sqlite,mysql`;
//! `backlog` measures a claim before 10, 1,000 and 1,000,000 waiting rows), `DATABASE_URL`, `MYSQL_URL`.

mod support;

use std::time::{Duration, Instant};

use acemq::{AceMq, OutboxRecord, OutboxRelay, OutboxStore, PostgresOutbox, SqliteOutbox};
use bytes::Bytes;
use lapin::Channel;
use sqlx::{
    PgPool, SqlitePool,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use support::{
    Rounds, WINDOW, body_size, delete_queue, fresh_quorum_queue, publish_raw, raw_channel, setting,
};

const RAW: &str = "acemq.bench.relay.raw";
const OURS: &str = "acemq.bench.relay.ours";
const PREFIX: &str = "acemq_bench_relay_";

#[tokio::main]
async fn main() {
    let forms = std::env::var("ACEMQ_BENCH_FORMS");
    let forms = forms.unwrap_or_else(|_| "postgres,ordered,few,sqlite,mysql".to_owned());
    let (_connection, channel) = raw_channel().await;
    let mq = AceMq::options(support::url()).max_in_flight(WINDOW).connect().await.unwrap();
    let mut last = Vec::new();
    for form in forms.split(',') {
        last.extend(match form {
            "postgres" => Some(postgres(&mq, &channel, "relay", None).await),
            "ordered" => Some(postgres(&mq, &channel, "relay_ordered", Some(1000)).await),
            "few" => Some(postgres(&mq, &channel, "relay_few_keys", Some(20)).await),
            "backlog" => Some(backlog().await),
            "sqlite" => Some(sqlite(&mq, &channel).await),
            #[cfg(feature = "mysql")]
            "mysql" => Some(mysql(&mq, &channel).await),
            _ => None,
        });
    }
    delete_queue(&channel, RAW).await;
    delete_queue(&channel, OURS).await;
    mq.close().await;
    println!("{}", last.join("\n"));
}

async fn postgres(
    mq: &AceMq,
    channel: &Channel,
    name: &'static str,
    keys: Option<usize>,
) -> String {
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into());
    let pool: PgPool = PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix(PREFIX).unwrap();
    outbox.migrate().await.unwrap();
    let empty = async || {
        sqlx::raw_sql("TRUNCATE acemq_bench_relay_outbox").execute(&pool).await.unwrap();
    };
    let fill = async |records| {
        empty().await;
        let mut tx = pool.begin().await.unwrap();
        outbox.add_all(&mut tx, records).await.unwrap();
        tx.commit().await.unwrap();
    };
    let line = rounds(mq, channel, name, keys, &outbox, fill).await;
    empty().await;
    line
}

/// What a claim of a hundred rows costs before ever more waiting ones, half of them with keys.
async fn backlog() -> String {
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into());
    let pool: PgPool = PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix(PREFIX).unwrap();
    outbox.migrate().await.unwrap();
    let mut medians = Vec::new();
    for waiting in [10, 1000, 1_000_000] {
        sqlx::raw_sql("TRUNCATE acemq_bench_relay_outbox").execute(&pool).await.unwrap();
        sqlx::query(
            "INSERT INTO acemq_bench_relay_outbox
                 (id, exchange, routing_key, payload, content_type, headers, ordering_key)
             SELECT gen_random_uuid(), '', 'k', decode(repeat('78', 256), 'hex'), 't', '{}',
                    CASE WHEN i % 2 = 0 THEN 'key' || i % 1000 END
             FROM generate_series(1, $1) i",
        )
        .bind(waiting)
        .execute(&pool)
        .await
        .unwrap();
        sqlx::raw_sql("ANALYZE acemq_bench_relay_outbox").execute(&pool).await.unwrap();
        let mut times = Vec::new();
        for _ in 0..50 {
            let started = Instant::now();
            let batch = outbox.claim_batch(100, Duration::from_secs(60)).await.unwrap();
            times.push(started.elapsed());
            let seqs: Vec<i64> = batch.records().iter().map(|record| record.seq()).collect();
            outbox.release(batch.token(), &seqs, Duration::ZERO).await.unwrap();
        }
        times.sort();
        println!("a claim of 100 before {waiting} waiting rows: median {:?}", times[25]);
        medians.push(times[25].as_secs_f64());
    }
    sqlx::raw_sql("TRUNCATE acemq_bench_relay_outbox").execute(&pool).await.unwrap();
    format!("relay_backlog ratio={:.2}", medians[1] / medians[2])
}

async fn sqlite(mq: &AceMq, channel: &Channel) -> String {
    let file = std::env::temp_dir().join("acemq-bench-relay.db");
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool: SqlitePool =
        SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
    let outbox = SqliteOutbox::new(pool.clone()).table_prefix(PREFIX).unwrap();
    outbox.migrate().await.unwrap();
    let fill = async |records| {
        sqlx::raw_sql("DELETE FROM acemq_bench_relay_outbox").execute(&pool).await.unwrap();
        let mut tx = outbox.begin().await.unwrap();
        outbox.add_all(&mut tx, records).await.unwrap();
        tx.commit().await.unwrap();
    };
    let line = rounds(mq, channel, "relay_sqlite", None, &outbox, fill).await;
    pool.close().await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    line
}

#[cfg(feature = "mysql")]
async fn mysql(mq: &AceMq, channel: &Channel) -> String {
    let url =
        std::env::var("MYSQL_URL").unwrap_or_else(|_| "mysql://root@127.0.0.1:3306/test".into());
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
    let outbox = acemq::MySqlOutbox::new(pool.clone()).table_prefix(PREFIX).unwrap();
    outbox.migrate().await.unwrap();
    let fill = async |records| {
        sqlx::raw_sql("TRUNCATE acemq_bench_relay_outbox").execute(&pool).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        outbox.add_all(&mut tx, records).await.unwrap();
        tx.commit().await.unwrap();
    };
    rounds(mq, channel, "relay_mysql", None, &outbox, fill).await
}

/// Alternates between the raw publisher and the relay; the first round warms both up.
async fn rounds<S: OutboxStore + Clone>(
    mq: &AceMq,
    channel: &Channel,
    name: &'static str,
    keys: Option<usize>,
    outbox: &S,
    fill: impl AsyncFn(Vec<OutboxRecord>),
) -> String {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 20_000);
    let body = Bytes::from(vec![b'x'; body_size()]);
    let bodies = vec![body.clone(); messages];
    println!("{name}: {messages} rows a round");
    let mut table = Rounds::new(name);
    for round in 0..=setting("ACEMQ_BENCH_ROUNDS", 5) {
        fresh_quorum_queue(channel, RAW).await;
        fresh_quorum_queue(channel, OURS).await;
        let record = |number: usize| {
            let record = OutboxRecord::bytes("", OURS, "application/octet-stream", body.clone());
            match keys {
                Some(keys) => record.ordering_key(format!("key {}", number % keys)),
                None => record,
            }
        };
        fill((0..messages).map(record).collect()).await;
        let raw = support::timed(publish_raw(channel, RAW, &bodies)).await;
        let ours = relay(mq, outbox, messages).await;
        assert_eq!(outbox.pending_count().await.unwrap(), 0);
        if round > 0 {
            table.note(messages, raw, ours);
        }
    }
    table.finish()
}

/// From the start of a relay until everything is published and marked.
async fn relay<S: OutboxStore + Clone>(mq: &AceMq, outbox: &S, messages: usize) -> Duration {
    let batch = u32::try_from(setting("ACEMQ_BENCH_BATCH", 1000)).unwrap();
    let started = Instant::now();
    let relay = OutboxRelay::new(mq, outbox.clone()).batch_size(batch).concurrency(WINDOW).start();
    let mut look = tokio::time::interval(Duration::from_millis(2));
    while relay.published() < messages as u64 {
        look.tick().await;
    }
    let time = started.elapsed();
    relay.close().await;
    time
}
