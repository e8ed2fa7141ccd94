//! Idempotent and transactional consumers on PostgreSQL, against the same SQL without a broker.
//!
//! `cargo bench --bench inbox`; settings: `ACEMQ_BENCH_MESSAGES`, `ACEMQ_BENCH_ROUNDS`,
//! `DATABASE_URL`.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use acemq::{AceMq, BytesCodec, Consumer, HandlerError, Message, PostgresIdempotencyStore, Work};
use bytes::Bytes;
use sqlx::{PgPool, Postgres, postgres::PgPoolOptions};
use support::{BODY, delete_queue, fresh_quorum_queue, median, raw_channel, setting};
use tokio::sync::Notify;

const QUEUE: &str = "acemq.bench.inbox";
const PREFIX: &str = "acemq_bench_";

/// Consumers at a time, and messages that share a transaction.
const LANES: usize = 4;
const BATCH: usize = 50;

#[tokio::main]
async fn main() {
    let messages = setting("ACEMQ_BENCH_MESSAGES", 5_000);
    let rounds = setting("ACEMQ_BENCH_ROUNDS", 5);
    let (_connection, channel) = raw_channel().await;
    let pool = pool().await;
    let store = PostgresIdempotencyStore::new(pool.clone()).table_prefix(PREFIX).unwrap();
    store.migrate().await.unwrap();
    let mq = AceMq::connect(support::url()).await.unwrap();
    let bodies = vec![Bytes::from(vec![b'x'; BODY]); messages];

    let mut last = Vec::new();
    for form in ["claim", "transaction", "batch"] {
        let (mut sql, mut ours) = (Vec::new(), Vec::new());
        println!("{form}: {:>6} {:>14} {:>14} {:>8}", "round", "bare SQL /s", "acemq /s", "ratio");
        for round in 0..=rounds {
            empty(&pool).await;
            let bare = bare_sql(&pool, form, messages).await;
            empty(&pool).await;
            fresh_quorum_queue(&channel, QUEUE).await;
            let publisher = mq.publisher_with::<Bytes>("", QUEUE, BytesCodec);
            assert_eq!(publisher.send_all(&bodies).await.confirmed(), messages);
            let consumed = consume(&mq, &pool, &store, form, messages).await;
            if round > 0 {
                let (bare, consumed) = (rate(messages, bare), rate(messages, consumed));
                println!(
                    "{:>8} {round:>6} {bare:>14.0} {consumed:>14.0} {:>8.3}",
                    "",
                    consumed / bare
                );
                sql.push(bare);
                ours.push(consumed);
            }
        }
        let ratio = median(sql.iter().zip(&ours).map(|(sql, ours)| ours / sql).collect());
        last.push(format!("inbox_{form} rate={:.0} ratio={ratio:.3}", median(ours)));
    }
    empty(&pool).await;
    for queue in [QUEUE, &format!("{QUEUE}.dlq"), &format!("{QUEUE}.parked")] {
        delete_queue(&channel, queue).await;
    }
    mq.close().await;
    println!("{}", last.join("\n"));
}

async fn pool() -> PgPool {
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into());
    let pool = PgPoolOptions::new().max_connections(16).connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS acemq_bench_effects (id text NOT NULL)")
        .execute(&pool)
        .await
        .unwrap();
    pool
}

async fn empty(pool: &PgPool) {
    sqlx::raw_sql("TRUNCATE acemq_bench_effects, acemq_bench_idempotency")
        .execute(pool)
        .await
        .unwrap();
}

#[allow(clippy::cast_precision_loss)] // message counts are far below 2^52
fn rate(messages: usize, time: Duration) -> f64 {
    messages as f64 / time.as_secs_f64()
}

const CLAIM: &str = "INSERT INTO acemq_bench_idempotency
    (consumer, message_id, state, claimed_by, recorded_at, expires_at)
    VALUES ('bench', $1, $2, gen_random_uuid(), now(), now() + interval '1 day')
    ON CONFLICT DO NOTHING";
const CONFIRM: &str = "UPDATE acemq_bench_idempotency
    SET state = 'CONFIRMED', expires_at = now() + interval '1 day'
    WHERE consumer = 'bench' AND message_id = $1";
const EFFECT: &str = "INSERT INTO acemq_bench_effects VALUES ($1)";

/// The statements of a form, by as many tasks as there are lanes.
async fn bare_sql(pool: &PgPool, form: &'static str, messages: usize) -> Duration {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let lanes = (0..LANES).map(|_| {
        let (pool, next) = (pool.clone(), next.clone());
        tokio::spawn(async move {
            let size = if form == "batch" { BATCH } else { 1 };
            while next.fetch_add(size, Ordering::Relaxed) < messages {
                match form {
                    "claim" => claim_form(&pool).await,
                    _ => transaction_form(&pool, size).await,
                }
                .unwrap();
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
    started.elapsed()
}

async fn claim_form(pool: &PgPool) -> sqlx::Result<()> {
    let id = uuid::Uuid::new_v4().to_string();
    sqlx::query(CLAIM).bind(&id).bind("CLAIMED").execute(pool).await?;
    sqlx::query(EFFECT).bind(&id).execute(pool).await?;
    sqlx::query(CONFIRM).bind(&id).execute(pool).await?;
    Ok(())
}

async fn transaction_form(pool: &PgPool, size: usize) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    for number in 0..size {
        let id = uuid::Uuid::new_v4().to_string();
        if size > 1 {
            let savepoint =
                if number == 0 { "SAVEPOINT one" } else { "RELEASE SAVEPOINT one; SAVEPOINT one" };
            sqlx::raw_sql(savepoint).execute(&mut *tx).await?;
        }
        sqlx::query(CLAIM).bind(&id).bind("CONFIRMED").execute(&mut *tx).await?;
        sqlx::query(EFFECT).bind(&id).execute(&mut *tx).await?;
    }
    tx.commit().await
}

async fn consume(
    mq: &AceMq,
    pool: &PgPool,
    store: &PostgresIdempotencyStore,
    form: &str,
    messages: usize,
) -> Duration {
    let seen = Arc::new(Seen { left: AtomicUsize::new(messages), done: Notify::new() });
    let started = Instant::now();
    let consumer = mq.consumer_with::<Bytes>(QUEUE, BytesCodec).prefetch(200).concurrency(LANES);
    let consumer = match form {
        "claim" => {
            let (seen, pool) = (seen.clone(), pool.clone());
            let consumer = consumer.idempotent(store.clone());
            consumer.start(move |message| with_claim(message, pool.clone(), seen.clone())).await
        }
        _ => {
            let seen = seen.clone();
            let size = if form == "batch" { BATCH } else { 1 };
            let consumer = consumer.transactional(store.clone()).batched(size);
            consumer.start(move |work| in_transaction(work, seen.clone())).await
        }
    };
    let consumer: Consumer = consumer.unwrap();
    seen.done.notified().await;
    let time = started.elapsed();
    consumer.close().await;
    assert_eq!(usize::try_from(consumer.stats().acked).unwrap(), messages);
    time
}

/// Counts handled messages down.
struct Seen {
    left: AtomicUsize,
    done: Notify,
}

impl Seen {
    fn one(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_one();
        }
    }
}

async fn with_claim(
    message: Message<Bytes>,
    pool: PgPool,
    seen: Arc<Seen>,
) -> Result<(), HandlerError> {
    sqlx::query(EFFECT).bind(message.id()).execute(&pool).await?;
    seen.one();
    Ok(())
}

async fn in_transaction(mut work: Work<Bytes, Postgres>, seen: Arc<Seen>) -> acemq::WorkResult {
    let (tx, message) = work.parts();
    sqlx::query(EFFECT).bind(message.id()).execute(&mut **tx).await?;
    let receipt = work.commit().await?;
    seen.one();
    Ok(receipt)
}
