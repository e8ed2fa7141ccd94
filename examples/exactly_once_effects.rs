//! A message, its effect in the database and its outgoing message commit together.
//!
//! `cargo run --example exactly_once_effects` uses SQLite; `ACEMQ_URL` picks another broker than
//! `memory://`.

use std::time::Duration;

use acemq::{
    AceMq, BoxError, Envelope, HandlerError, OutboxRecord, OutboxRelay, Queue, RetryPolicy,
    SqliteIdempotencyStore, SqliteOutbox, Topology, Work,
};
use sqlx::{Sqlite, SqlitePool, sqlite::SqliteConnectOptions};

const QUEUE: &str = "acemq.example.stock";
const NEXT: &str = "acemq.example.shipping";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    mq.declare(&Topology::new().queue(Queue::new(QUEUE)).queue(Queue::new(NEXT))).await?;
    let file = std::env::temp_dir().join(format!("acemq-stock-{}.db", std::process::id()));
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    let (handled, outbox) =
        (SqliteIdempotencyStore::new(pool.clone()), SqliteOutbox::new(pool.clone()));
    handled.migrate().await?;
    outbox.migrate().await?;
    sqlx::query("CREATE TABLE stock (pieces INTEGER)").execute(&pool).await?;
    sqlx::query("INSERT INTO stock VALUES (10)").execute(&pool).await?;

    let records = outbox.clone();
    let consumer = mq
        .consumer::<i64>(QUEUE)
        .retry(RetryPolicy::fixed(5, Duration::from_millis(10)))
        .transactional(handled)
        .start(move |mut work: Work<i64, Sqlite>| {
            let outbox = records.clone();
            async move {
                let pieces = *work.payload();
                let take = sqlx::query("UPDATE stock SET pieces = pieces - $1").bind(pieces);
                take.execute(&mut **work.tx()).await?;
                let shipped = OutboxRecord::json("", NEXT, &pieces)?
                    .envelope(work.envelope().causing("stock.reserved"));
                outbox.add(work.tx(), shipped).await?;
                if work.message().attempt() < 3 {
                    return Err(HandlerError::retry("crashed before the commit"));
                }
                Ok(work.commit().await?) // the only way to a receipt
            }
        })
        .await?;

    let envelope = Envelope::new();
    for _ in 0..2 {
        mq.publisher::<i64>("", QUEUE).send_with(&3, envelope.clone()).await?;
    }
    while consumer.stats().acked + consumer.stats().duplicates < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    OutboxRelay::new(&mq, outbox).drain(0).await?;
    let (left,): (i64,) = sqlx::query_as("SELECT pieces FROM stock").fetch_one(&pool).await?;
    let announced = mq.queue_length(NEXT).await?;
    println!("delivered {} times; {left} of 10 pieces left", consumer.stats().received);
    println!("announced to the next service: {}", announced.unwrap_or(0));
    assert_eq!((left, announced), (7, Some(1)));

    consumer.close().await;
    for queue in [QUEUE, NEXT] {
        for suffix in ["", ".dlq", ".parked"] {
            mq.delete_queue(&format!("{queue}{suffix}")).await?;
        }
    }
    mq.close().await;
    pool.close().await;
    std::fs::remove_file(file)?;
    Ok(())
}
