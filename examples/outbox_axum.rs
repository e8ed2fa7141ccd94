//! An HTTP service that writes an order and its event in one transaction.
//!
//! `cargo run --example outbox_axum`, then
//! `curl -H 'content-type: application/json' -d '{"item":"tea","quantity":2}' localhost:8080/orders`.
//! It needs no server; `ACEMQ_URL` picks another broker than `memory://`. With
//! `ACEMQ_EXAMPLE_ONCE=1` it sends itself one order and stops.

use std::sync::Arc;

use acemq::{
    AceMq, BoxError, Exchange, Message, OutboxRecord, OutboxRelay, Queue, SqliteOutbox, Topology,
};
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqlitePoolOptions;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

const EXCHANGE: &str = "acemq.example.orders";
const QUEUE: &str = "acemq.example.billing";

#[derive(Deserialize)]
struct NewOrder {
    item: String,
    quantity: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct OrderPlaced {
    id: i64,
    item: String,
    quantity: u32,
}

async fn place_order(
    State(outbox): State<SqliteOutbox>,
    Json(order): Json<NewOrder>,
) -> Result<(StatusCode, Json<OrderPlaced>), Failed> {
    let mut tx = outbox.begin().await?;
    let id = sqlx::query_scalar("INSERT INTO orders (item, quantity) VALUES (?, ?) RETURNING id")
        .bind(&order.item)
        .bind(order.quantity)
        .fetch_one(&mut *tx)
        .await?;
    let event = OrderPlaced { id, item: order.item, quantity: order.quantity };
    let record = OutboxRecord::json(EXCHANGE, "order.placed", &event)?;
    outbox.add(&mut tx, record.ordering_key(format!("order-{id}"))).await?;
    // Both or neither: a crash before this line leaves no order and no event, one after it both.
    tx.commit().await?;
    outbox.wake();
    Ok((StatusCode::CREATED, Json(event)))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // A service would use a file, or a database server, with migrations of its own.
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    sqlx::raw_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, quantity INTEGER)")
        .execute(&pool)
        .await?;
    let outbox = SqliteOutbox::new(pool);
    outbox.migrate().await?;

    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    let topology = Topology::new()
        .exchange(Exchange::topic(EXCHANGE))
        .queue(Queue::new(QUEUE))
        .bind(QUEUE, EXCHANGE, "order.*");
    mq.declare(&topology).await?;
    let relay = OutboxRelay::new(&mq, outbox.clone()).start();

    let billed = Arc::new(Notify::new());
    let bill = Arc::clone(&billed);
    let consumer = mq
        .consumer::<OrderPlaced>(QUEUE)
        .start(move |message: Message<OrderPlaced>| {
            println!("billing: {:?}", message.payload());
            bill.notify_one();
            async { Ok(()) }
        })
        .await?;

    let once = std::env::var("ACEMQ_EXAMPLE_ONCE").is_ok();
    let listener = TcpListener::bind(if once { "127.0.0.1:0" } else { "127.0.0.1:8080" }).await?;
    let address = listener.local_addr()?;
    println!("listening on {address}");
    let app = Router::new().route("/orders", post(place_order)).with_state(outbox);
    let stop = async move {
        if once {
            println!("answered: {}", order_from(address).await.unwrap_or_else(|e| e.to_string()));
            billed.notified().await;
        } else {
            let _ = tokio::signal::ctrl_c().await;
        }
    };
    // Requests first, then what they left in the outbox, then the connection: nothing is cut off.
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    relay.close().await;
    consumer.close().await;
    mq.close().await;
    Ok(())
}

/// Places one order as a client would, and returns the first line of the answer.
async fn order_from(address: std::net::SocketAddr) -> std::io::Result<String> {
    let body = r#"{"item":"tea","quantity":2}"#;
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// Whatever went wrong, as an answer.
struct Failed(BoxError);

impl<E: Into<BoxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0.to_string()).into_response()
    }
}
