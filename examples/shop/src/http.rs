//! The door: orders come in, and what became of them can be read.

use std::time::Duration;

use acemq::{AceMq, Requester};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use crate::{
    ledger,
    offers::{Offer, OfferRequest},
    orders::{Order, OrderPlaced, Orders},
};

const OFFER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Shop {
    pub mq: AceMq,
    pub orders: Orders,
    pub requester: Requester,
}

/// The client chooses the id, so that it can send an order again after a lost answer.
#[derive(Debug, Deserialize)]
struct NewOrder {
    id: Uuid,
    customer: String,
    sku: String,
    quantity: u16,
}

type Answer = Result<Response, Failed>;

pub fn routes(shop: Shop) -> Router {
    Router::new()
        .route("/orders", post(place))
        .route("/orders/{id}", get(order))
        .route("/offers/{sku}", get(offer))
        .route("/customers/{customer}/ledger", get(ledger))
        .route("/health", get(health))
        .route("/live", get(|| async { StatusCode::OK }))
        .with_state(shop)
}

async fn place(State(shop): State<Shop>, Json(new): Json<NewOrder>) -> Answer {
    if new.customer.is_empty() || new.quantity == 0 {
        return Err(Failed(StatusCode::BAD_REQUEST, "customer or quantity is missing".into()));
    }
    if let Some(known) = shop.orders.find(new.id).await? {
        return again(known, &new);
    }
    let offer = ask(&shop, &new.sku).await?;
    let placed = OrderPlaced {
        id: new.id,
        customer: new.customer.clone(),
        sku: new.sku.clone(),
        quantity: new.quantity.into(),
        cents: offer.cents * i64::from(new.quantity),
    };
    let fresh = shop.orders.place(&placed).await?;
    let Some(order) = shop.orders.find(new.id).await? else { return Err(not_found("order")) };
    if fresh { Ok((StatusCode::CREATED, Json(order)).into_response()) } else { again(order, &new) }
}

/// Answers an order that is known: the same one as the first time, another one with a conflict.
fn again(known: Order, new: &NewOrder) -> Answer {
    let OrderPlaced { customer, sku, quantity, .. } = &known.placed;
    if (customer, sku, *quantity) == (&new.customer, &new.sku, i64::from(new.quantity)) {
        return Ok(Json(known).into_response());
    }
    Err(Failed(StatusCode::CONFLICT, format!("order {} is another one", new.id)))
}

async fn order(State(shop): State<Shop>, Path(id): Path<Uuid>) -> Answer {
    let found = shop.orders.find(id).await?;
    found.map(|order| Json(order).into_response()).ok_or_else(|| not_found("order"))
}

async fn offer(State(shop): State<Shop>, Path(sku): Path<String>) -> Answer {
    Ok(Json(ask(&shop, &sku).await?).into_response())
}

async fn ledger(State(shop): State<Shop>, Path(customer): Path<String>) -> Answer {
    Ok(Json(ledger::of(&shop.orders.pool, &customer).await?).into_response())
}

/// For a readiness probe: 200 while broker and database can be worked with.
async fn health(State(shop): State<Shop>) -> Response {
    let health = shop.mq.health().await;
    let ready = health.is_ready() && health.troubled().all(|part| part.kind != "database");
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health)).into_response()
}

async fn ask(shop: &Shop, sku: &str) -> Result<Offer, Failed> {
    let (queue, request) = (shop.orders.names.offers(), OfferRequest { sku: sku.to_owned() });
    let asked = shop.requester.request("", &queue, &request, OFFER_WITHIN).await;
    let answer: Option<Offer> = asked.map_err(|error| {
        tracing::warn!(%error, "no offer");
        Failed(StatusCode::SERVICE_UNAVAILABLE, "try again".into())
    })?;
    answer.ok_or_else(|| not_found("article"))
}

/// An answer that is no success.
struct Failed(StatusCode, String);

fn not_found(what: &str) -> Failed {
    Failed(StatusCode::NOT_FOUND, format!("no such {what}"))
}

impl<E: Into<crate::error::ShopError>> From<E> for Failed {
    fn from(error: E) -> Self {
        let error = error.into();
        tracing::error!(?error, "a request failed");
        Self(StatusCode::INTERNAL_SERVER_ERROR, "try again".into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}
