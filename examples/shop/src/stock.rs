//! Stock: reserving pieces for an order, and giving them back.

use acemq::StepError;

use crate::{
    error::{NotOpen, Refused},
    orders::{OrderPlaced, Orders},
};

#[derive(Clone)]
pub struct Stock {
    pub orders: Orders,
}

impl Stock {
    /// Takes the pieces of an order out of the stock, once however often it runs.
    pub async fn reserve(self, order: OrderPlaced) -> Result<(), StepError> {
        let mut tx = self.orders.lock(order.id).await?.ok_or(NotOpen)?;
        let insert = "INSERT INTO reservations (order_id, sku, quantity) VALUES ($1, $2, $3) \
                      ON CONFLICT DO NOTHING";
        let noted = sqlx::query(insert)
            .bind(order.id)
            .bind(&order.sku)
            .bind(order.quantity)
            .execute(&mut *tx)
            .await?;
        if noted.rows_affected() == 0 {
            return Ok(());
        }
        let update = "UPDATE stock SET pieces = pieces - $2 WHERE sku = $1 AND pieces >= $2";
        let taken =
            sqlx::query(update).bind(&order.sku).bind(order.quantity).execute(&mut *tx).await?;
        if taken.rows_affected() == 0 {
            return Err(StepError::fatal(Refused(format!("{} is sold out", order.sku))));
        }
        tx.commit().await.map_err(StepError::unknown)
    }

    /// Puts the pieces back; nothing if they were not taken or the order is not open.
    pub async fn release(self, order: OrderPlaced) -> Result<(), StepError> {
        let Some(mut tx) = self.orders.lock(order.id).await? else { return Ok(()) };
        let give_back = "WITH given AS \
             (DELETE FROM reservations WHERE order_id = $1 RETURNING sku, quantity) \
             UPDATE stock SET pieces = stock.pieces + given.quantity \
             FROM given WHERE stock.sku = given.sku";
        sqlx::query(give_back).bind(order.id).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }
}
