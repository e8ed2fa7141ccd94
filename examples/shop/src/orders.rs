//! Orders: the row, its events, and its way from placed to paid or cancelled.

use acemq::{Envelope, OutboxRecord, PostgresOutbox};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Postgres, Row, Transaction, postgres::PgRow};
use uuid::Uuid;

use crate::{error::Result, names::Names};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderPlaced {
    pub id: Uuid,
    pub customer: String,
    pub sku: String,
    pub quantity: i64,
    pub cents: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderPaid {
    pub id: Uuid,
    pub customer: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderCancelled {
    pub id: Uuid,
    pub customer: String,
    pub reason: String,
}

/// What is stored, and shown over HTTP.
#[derive(Debug, Serialize)]
pub struct Order {
    #[serde(flatten)]
    pub placed: OrderPlaced,
    pub status: String,
    pub reason: Option<String>,
}

#[derive(Clone)]
pub struct Orders {
    pub pool: PgPool,
    pub outbox: PostgresOutbox,
    pub names: Names,
}

impl Orders {
    /// Stores an order and its event in one transaction; false if the id is known already.
    pub async fn place(&self, order: &OrderPlaced) -> Result<bool> {
        let mut tx = self.pool.begin().await?;
        let insert = "INSERT INTO orders (id, customer, sku, quantity, cents) \
                      VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
        let stored = sqlx::query(insert)
            .bind(order.id)
            .bind(&order.customer)
            .bind(&order.sku)
            .bind(order.quantity)
            .bind(order.cents)
            .execute(&mut *tx)
            .await?;
        if stored.rows_affected() == 0 {
            return Ok(false);
        }
        self.announce(&mut tx, order.id, "order.placed", order).await?;
        tx.commit().await?;
        self.outbox.wake();
        Ok(true)
    }

    pub async fn find(&self, id: Uuid) -> sqlx::Result<Option<Order>> {
        let select = "SELECT * FROM orders WHERE id = $1";
        let row = sqlx::query(select).bind(id).fetch_optional(&self.pool).await?;
        row.as_ref().map(read).transpose()
    }

    /// Locks an order that is neither paid nor cancelled; none if it is. Whatever changes such an
    /// order's stock or payment does it behind this lock, so that a run that was overtaken by
    /// another one finds out.
    pub async fn lock(&self, id: Uuid) -> sqlx::Result<Option<Transaction<'static, Postgres>>> {
        let mut tx = self.pool.begin().await?;
        let select = "SELECT 1 FROM orders WHERE id = $1 AND status = 'placed' FOR UPDATE";
        let found = sqlx::query(select).bind(id).fetch_optional(&mut *tx).await?;
        Ok(found.map(|_| tx))
    }

    /// Cancels an order and says so; nothing if it is no longer open.
    pub async fn cancel(&self, id: Uuid, reason: &str) -> Result<()> {
        let Some(mut tx) = self.lock(id).await? else { return Ok(()) };
        let update = "UPDATE orders SET status = 'cancelled', reason = $2 WHERE id = $1 \
                      RETURNING customer";
        let updated = sqlx::query_scalar(update).bind(id).bind(reason);
        let customer = updated.fetch_one(&mut *tx).await?;
        let event = OrderCancelled { id, customer, reason: reason.to_owned() };
        self.announce(&mut tx, id, "order.cancelled", &event).await?;
        tx.commit().await?;
        self.outbox.wake();
        Ok(())
    }

    /// Adds an event of an order to the transaction; events of one order keep their order.
    pub async fn announce(
        &self,
        tx: &mut Transaction<'static, Postgres>,
        order: Uuid,
        event: &str,
        payload: &impl Serialize,
    ) -> acemq::Result<()> {
        let record = OutboxRecord::json(self.names.orders(), event, payload)?
            .envelope(Envelope::of(event).correlation(order.to_string()))
            .ordering_key(order.to_string());
        self.outbox.add(tx, record).await?;
        Ok(())
    }
}

fn read(row: &PgRow) -> sqlx::Result<Order> {
    Ok(Order {
        placed: OrderPlaced {
            id: row.try_get("id")?,
            customer: row.try_get("customer")?,
            sku: row.try_get("sku")?,
            quantity: row.try_get("quantity")?,
            cents: row.try_get("cents")?,
        },
        status: row.try_get("status")?,
        reason: row.try_get("reason")?,
    })
}
