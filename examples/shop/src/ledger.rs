//! The ledger: bookings of a customer in the order in which they were committed.

use acemq::{AceMq, HandlerResult, Message, OnFailure, OrderedQueue};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Row};
use uuid::Uuid;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Booking {
    pub order: Uuid,
    pub customer: String,
    pub cents: i64,
}

#[derive(Debug, Serialize)]
pub struct Entry {
    pub number: i64,
    pub order: Uuid,
    pub cents: i64,
    pub balance: i64,
}

pub async fn start(mq: &AceMq, name: String, pool: PgPool) -> acemq::Result<OrderedQueue<Booking>> {
    mq.ordered::<Booking>(name)
        .partitions(4)
        .keyed_by(|booking: &Booking| booking.customer.clone())
        // A gap in a ledger is worse than a wait: `/health` shows a partition that halted.
        .on_failure(OnFailure::Stop)
        .consume(move |booking: Message<Booking>| enter(pool.clone(), booking))
        .await
}

/// Enters a booking behind the last one of its customer; a repetition changes nothing.
async fn enter(pool: PgPool, message: Message<Booking>) -> HandlerResult {
    let Booking { order, customer, cents } = message.payload();
    let insert = "INSERT INTO ledger (customer, number, order_id, cents, balance) \
         SELECT $1, coalesce(max(number), 0) + 1, $2, $3, (coalesce(sum(cents), 0) + $3)::bigint \
         FROM ledger WHERE customer = $1 ON CONFLICT (order_id) DO NOTHING";
    sqlx::query(insert).bind(customer).bind(order).bind(cents).execute(&pool).await?;
    Ok(())
}

pub async fn of(pool: &PgPool, customer: &str) -> sqlx::Result<Vec<Entry>> {
    let select = "SELECT * FROM ledger WHERE customer = $1 ORDER BY number";
    let rows = sqlx::query(select).bind(customer).fetch_all(pool).await?;
    rows.iter()
        .map(|row| {
            Ok(Entry {
                number: row.try_get("number")?,
                order: row.try_get("order_id")?,
                cents: row.try_get("cents")?,
                balance: row.try_get("balance")?,
            })
        })
        .collect()
}
