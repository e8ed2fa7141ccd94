//! Mails: a stand-in that notes in a table what a real shop would hand to its mail service.

use acemq::{AceMq, Consumer, PostgresIdempotencyStore, Work, WorkResult};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use crate::orders::OrderCancelled;

/// Tells customers that their order was cancelled.
pub async fn start(
    mq: &AceMq,
    queue: String,
    inbox: PostgresIdempotencyStore,
) -> acemq::Result<Consumer> {
    mq.consumer::<OrderCancelled>(queue).transactional(inbox).start(cancelled).await
}

async fn cancelled(mut work: Work<OrderCancelled, Postgres>) -> WorkResult {
    let (tx, cancelled) = work.parts();
    let OrderCancelled { id, customer, .. } = cancelled.payload();
    write(tx, *id, customer, "cancelled").await?;
    Ok(work.commit().await?)
}

/// Writes a mail in the transaction of the message that asks for it.
pub async fn write(
    tx: &mut Transaction<'static, Postgres>,
    order: Uuid,
    customer: &str,
    kind: &str,
) -> sqlx::Result<()> {
    let insert = "INSERT INTO mails (order_id, customer, kind) VALUES ($1, $2, $3)";
    sqlx::query(insert).bind(order).bind(customer).bind(kind).execute(&mut **tx).await?;
    Ok(())
}
