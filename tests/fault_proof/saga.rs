//! A saga for each order, driven by its message: pay, reserve, and a courier that some orders do
//! not get.
//!
//! The saga lives in memory. A process that dies leaves it half done, the message comes again, and
//! the steps find what was done. Two runs of one order may overlap when a process was frozen; the
//! row of its end, written once under the lock of the order, is what they agree on. A durable saga
//! takes the place of `start`, and the books stay the same.

use std::time::Duration;

use acemq::{Consumer, HandlerError, HandlerResult, Message, RetryPolicy, Saga, StepError};
use sqlx::{PgPool, PgTransaction};

use crate::{
    steps::patient,
    system::{Order, Site, effect},
};

/// How a saga may end.
pub const COMPLETE: &str = "complete";
pub const UNDONE: &str = "undone";

/// A run with its way to the database.
#[derive(Debug, Clone)]
struct Run {
    order: Order,
    db: PgPool,
}

pub async fn start(site: &Site) -> acemq::Result<Consumer> {
    let (saga, db) = (definition()?, site.db.clone());
    let consumer = site.mq.consumer::<Order>(site.names.of("saga")).retry(patient());
    consumer
        .concurrency(4)
        .start(move |order: Message<Order>| {
            let (saga, db) = (saga.clone(), db.clone());
            async move {
                let (id, order) = (order.id().to_owned(), order.into_payload());
                let outcome = saga.run(Run { order: order.clone(), db: db.clone() }).await;
                if outcome.has_unresolved() {
                    return Err(HandlerError::retry(format!("{outcome:?}")));
                }
                let how = if outcome.is_complete() { COMPLETE } else { UNDONE };
                end(&db, &order, &id, how).await
            }
        })
        .await
}

fn definition() -> acemq::Result<Saga<Run>> {
    // Only what an order says makes its saga fail; an outage is waited for.
    let outage = || RetryPolicy::fixed(10_000, Duration::from_millis(100));
    Saga::<Run>::named("fulfil")
        .step("pay", |run: Run| async move { set(&run, "pay", true).await })
        .retry(outage())
        .compensate_with(|run: Run| async move { set(&run, "pay", false).await })
        .retry(outage())
        .step("reserve", |run: Run| async move { set(&run, "reserve", true).await })
        .retry(outage())
        .compensate_with(|run: Run| async move { set(&run, "reserve", false).await })
        .retry(outage())
        .step("courier", |run: Run| async move {
            if run.order.is_undone() {
                return Err(StepError::fatal("no courier"));
            }
            set(&run, "courier", true).await
        })
        .retry(outage())
        .build()
}

/// A transaction that holds the order's row, and how its saga has ended, if it has.
async fn locked(
    db: &PgPool,
    order: i64,
) -> Result<(PgTransaction<'static>, Option<String>), sqlx::Error> {
    let mut tx = db.begin().await?;
    sqlx::query("SELECT 1 FROM orders WHERE id = $1 FOR UPDATE")
        .bind(order)
        .execute(&mut *tx)
        .await?;
    let ended = sqlx::query_scalar("SELECT how FROM saga_ends WHERE order_id = $1");
    let ended = ended.bind(order).fetch_optional(&mut *tx).await?;
    Ok((tx, ended))
}

/// Does or undoes a step, unless the saga has ended meanwhile.
async fn set(run: &Run, step: &str, done: bool) -> Result<(), StepError> {
    try_set(run, step, done).await.map_err(StepError::unknown)
}

async fn try_set(run: &Run, step: &str, done: bool) -> Result<(), sqlx::Error> {
    let (mut tx, ended) = locked(&run.db, run.order.id).await?;
    if ended.is_none() {
        let sql = "INSERT INTO saga_steps VALUES ($1, $2, $3)
            ON CONFLICT (order_id, step) DO UPDATE SET done = excluded.done";
        sqlx::query(sql).bind(run.order.id).bind(step).bind(done).execute(&mut *tx).await?;
    }
    tx.commit().await
}

/// Notes the end, once. A run that another one has undone under its feet is no end yet.
async fn end(db: &PgPool, order: &Order, message: &str, how: &str) -> HandlerResult {
    let (mut tx, ended) = locked(db, order.id).await?;
    if ended.is_none() {
        let done = "SELECT count(*) FROM saga_steps WHERE order_id = $1 AND done";
        let done: i64 = sqlx::query_scalar(done).bind(order.id).fetch_one(&mut *tx).await?;
        if done != if how == COMPLETE { 3 } else { 0 } {
            let reason = format!("{done} steps of {order:?} are done, and it is {how}");
            return Err(HandlerError::retry(reason));
        }
        let sql = "INSERT INTO saga_ends VALUES ($1, $2)";
        sqlx::query(sql).bind(order.id).bind(how).execute(&mut *tx).await?;
    }
    effect(&mut *tx, "saga", order.id, message, how).await?;
    Ok(tx.commit().await?)
}
