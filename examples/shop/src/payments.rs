//! Payments: a stand-in for a provider behind HTTP, which would get the order's id as its
//! idempotency key and answer a repetition as the first time.

use acemq::StepError;

use crate::{
    error::{NotOpen, Refused},
    orders::{OrderPlaced, Orders},
};

#[derive(Clone)]
pub struct Payments {
    pub orders: Orders,
    pub limit: i64,
}

impl Payments {
    /// Charges an order, once however often it runs.
    pub async fn charge(self, order: OrderPlaced) -> Result<(), StepError> {
        if order.cents > self.limit {
            let reason = format!("a payment of {} cents was refused", order.cents);
            return Err(StepError::fatal(Refused(reason)));
        }
        let mut tx = self.orders.lock(order.id).await?.ok_or(NotOpen)?;
        let insert = "INSERT INTO payments (order_id, cents, state) VALUES ($1, $2, 'charged') \
                      ON CONFLICT (order_id) DO UPDATE SET state = 'charged'";
        sqlx::query(insert).bind(order.id).bind(order.cents).execute(&mut *tx).await?;
        tx.commit().await.map_err(StepError::unknown)
    }

    /// Gives the money back; nothing if none was taken or the order is not open.
    pub async fn refund(self, order: OrderPlaced) -> Result<(), StepError> {
        let Some(mut tx) = self.orders.lock(order.id).await? else { return Ok(()) };
        let update = "UPDATE payments SET state = 'refunded' WHERE order_id = $1";
        sqlx::query(update).bind(order.id).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }
}
