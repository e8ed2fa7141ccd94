//! The main job, end to end: an order is stored together with its event in one transaction, a
//! relay publishes the event, and a consumer handles it once.
//!
//! `cargo run --example order_fulfilment` needs no server: it uses `memory://` and SQLite. With
//! `ACEMQ_URL` and `DATABASE_URL` (PostgreSQL) it does the same on those.

use std::{sync::Arc, time::Duration};

use acemq::{
    AceMq, BoxError, Exchange, HandlerError, HandlerResult, IdempotencyStore, Message,
    OutboxRecord, OutboxRelay, OutboxStore, PostgresIdempotencyStore, PostgresOutbox, Queue,
    RetryPolicy, SqliteIdempotencyStore, SqliteOutbox, Topology,
};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, SqlitePool, sqlite::SqliteConnectOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const EXCHANGE: &str = "acemq.example.orders";
const QUEUE: &str = "acemq.example.billing";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct OrderPlaced {
    order: u32,
    total: i64,
}

/// What a customer does: most orders are committed, one is rolled back.
const ORDERS: [(u32, i64, bool); 4] =
    [(1, 120, true), (2, -1, true), (3, 75, false), (4, 60, true)];

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::options(url).client_name("order-fulfilment").connect().await?;
    mq.declare(
        &Topology::new()
            .exchange(Exchange::topic(EXCHANGE))
            .queue(Queue::new(QUEUE))
            .bind(QUEUE, EXCHANGE, "order.*"),
    )
    .await?;
    match std::env::var("DATABASE_URL") {
        Ok(database) => on_postgres(&mq, &database).await?,
        Err(_) => on_sqlite(&mq).await?,
    }
    for queue in [QUEUE, "acemq.example.billing.dlq", "acemq.example.billing.parked"] {
        mq.delete_queue(queue).await?;
    }
    mq.close().await;
    Ok(())
}

async fn on_sqlite(mq: &AceMq) -> Result<(), BoxError> {
    let file = std::env::temp_dir().join(format!("acemq-example-{}.db", std::process::id()));
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    let (outbox, handled) =
        (SqliteOutbox::new(pool.clone()), SqliteIdempotencyStore::new(pool.clone()));
    outbox.migrate().await?;
    handled.migrate().await?;
    sqlx::query("CREATE TABLE example_orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        .execute(&pool)
        .await?;
    for (order, total, commit) in ORDERS {
        // The order and its event: one transaction, or nothing.
        let mut tx = pool.begin().await?;
        sqlx::query("INSERT INTO example_orders VALUES ($1, $2)")
            .bind(order)
            .bind(total)
            .execute(&mut *tx)
            .await?;
        outbox.add(&mut tx, placed(order, total)?).await?;
        if commit {
            tx.commit().await?
        } else {
            tx.rollback().await?
        }
        say_stored(order, commit);
    }
    relay_and_bill(mq, outbox, handled).await?;
    pool.close().await;
    std::fs::remove_file(file)?;
    Ok(())
}

async fn on_postgres(mq: &AceMq, url: &str) -> Result<(), BoxError> {
    let pool = PgPool::connect(url).await?;
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix("acemq_example_")?;
    let handled = PostgresIdempotencyStore::new(pool.clone()).table_prefix("acemq_example_")?;
    outbox.migrate().await?;
    handled.migrate().await?;
    sqlx::query("DROP TABLE IF EXISTS example_orders").execute(&pool).await?;
    sqlx::query("CREATE TABLE example_orders (id bigint PRIMARY KEY, total bigint NOT NULL)")
        .execute(&pool)
        .await?;
    for (order, total, commit) in ORDERS {
        let mut tx = pool.begin().await?;
        sqlx::query("INSERT INTO example_orders VALUES ($1, $2)")
            .bind(i64::from(order))
            .bind(total)
            .execute(&mut *tx)
            .await?;
        outbox.add(&mut tx, placed(order, total)?).await?;
        if commit {
            tx.commit().await?
        } else {
            tx.rollback().await?
        }
        say_stored(order, commit);
    }
    relay_and_bill(mq, outbox, handled).await?;
    sqlx::query("DROP TABLE example_orders").execute(&pool).await?;
    pool.close().await;
    Ok(())
}

fn placed(order: u32, total: i64) -> acemq::Result<OutboxRecord> {
    OutboxRecord::json(EXCHANGE, "order.placed", &OrderPlaced { order, total })
}

fn say_stored(order: u32, commit: bool) {
    let what = if commit { "stored with its event" } else { "rolled back, and its event with it" };
    println!("order {order}: {what}");
}

/// The other half of the service: everything from the committed row to the handled event.
async fn relay_and_bill(
    mq: &AceMq,
    outbox: impl OutboxStore,
    handled: impl IdempotencyStore,
) -> Result<(), BoxError> {
    let (billed, mut bills) = unbounded_channel();
    let consumer = mq
        .consumer::<OrderPlaced>(QUEUE)
        .retry(RetryPolicy::fixed(3, Duration::from_millis(50)))
        .idempotent(handled)
        .start(move |message| bill(message, billed.clone()))
        .await?;
    let relay = OutboxRelay::new(mq, outbox).start();

    let first = next(&mut bills).await?;
    next(&mut bills).await?;

    // A relay that dies between the broker's confirm and its mark publishes again, with the same
    // message id. Here that is done on purpose.
    let publisher = mq.publisher::<OrderPlaced>(EXCHANGE, "order.placed");
    publisher.send_with(first.payload(), first.envelope().clone()).await?;
    let stats =
        until(|| consumer.stats(), |stats| stats.duplicates == 1 && stats.dead_lettered == 1)
            .await?;
    println!("order {}: a duplicate came and was recognised", first.payload().order);
    println!("order 2: dead-lettered after {} retries", stats.retried);

    relay.close().await;
    println!("relay: {} events published", relay.published());
    consumer.close().await;
    let dead = mq.queue_length("acemq.example.billing.dlq").await?.unwrap_or(0);
    println!("billed {}, duplicates {}, dead letters {dead}", stats.acked, stats.duplicates);
    if (stats.acked, relay.published(), dead) != (2, 3, 1) {
        return Err(format!("not as promised: {stats:?}, published {}", relay.published()).into());
    }
    Ok(())
}

async fn bill(
    message: Message<OrderPlaced>,
    billed: UnboundedSender<Arc<Message<OrderPlaced>>>,
) -> HandlerResult {
    let OrderPlaced { order, total } = *message.payload();
    if total < 0 {
        println!("order {order}: attempt {} failed", message.attempt());
        return Err(HandlerError::retry(format!("cannot bill a total of {total}")));
    }
    println!("order {order}: billed {total}");
    billed.send(Arc::new(message))?;
    Ok(())
}

async fn next<T>(bills: &mut UnboundedReceiver<T>) -> Result<T, BoxError> {
    let bill = tokio::time::timeout(Duration::from_secs(20), bills.recv()).await?;
    bill.ok_or_else(|| "the consumer ended".into())
}

async fn until<T>(look: impl Fn() -> T, good: impl Fn(&T) -> bool) -> Result<T, BoxError> {
    for _ in 0..2000 {
        let seen = look();
        if good(&seen) {
            return Ok(seen);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("waited for 20 seconds".into())
}
