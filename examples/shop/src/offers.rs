//! Offers: what an article costs and how many there are, asked over the broker.

use acemq::{AceMq, Responder, ResponderError};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Row};

#[derive(Debug, Serialize, Deserialize)]
pub struct OfferRequest {
    pub sku: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    pub sku: String,
    pub cents: i64,
    pub pieces: i64,
}

/// In a larger shop this is a service of its own; the caller would not notice.
pub async fn start(mq: &AceMq, queue: String, pool: PgPool) -> acemq::Result<Responder> {
    mq.respond(queue, move |request: OfferRequest| offer(pool.clone(), request)).await
}

/// Answers none for an article that does not exist: a failure would dead-letter the question, and
/// a customer's typing error is nothing that an operator has to look at.
async fn offer(pool: PgPool, request: OfferRequest) -> Result<Option<Offer>, ResponderError> {
    let found = find(&pool, &request.sku).await;
    found.map_err(|error| ResponderError::new("Unavailable", error))
}

async fn find(pool: &PgPool, sku: &str) -> sqlx::Result<Option<Offer>> {
    let select = "SELECT cents, pieces FROM stock WHERE sku = $1";
    let Some(row) = sqlx::query(select).bind(sku).fetch_optional(pool).await? else {
        return Ok(None);
    };
    let (cents, pieces) = (row.try_get("cents")?, row.try_get("pieces")?);
    Ok(Some(Offer { sku: sku.to_owned(), cents, pieces }))
}
