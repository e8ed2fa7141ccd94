//! Readiness and health of a service over HTTP.
//!
//! `cargo run --example health_axum`, then `curl -i localhost:8080/ready` and
//! `curl localhost:8080/health`. It needs no server; `ACEMQ_URL` picks another broker than
//! `memory://`. With `ACEMQ_EXAMPLE_ONCE=1` it asks itself and stops.

use acemq::{AceMq, BoxError, Health, Message, Queue, Topology};
use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const QUEUE: &str = "acemq.example.health";

/// For a load balancer: can this instance reach the broker? A halted partition or an old outbox
/// is no reason to take it away, and a liveness probe should ask neither.
async fn ready(State(mq): State<AceMq>) -> StatusCode {
    if mq.health().await.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// For people and alarms: everything, with reasons.
async fn health(State(mq): State<AceMq>) -> Json<Health> {
    Json(mq.health().await)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    mq.declare(&Topology::new().queue(Queue::new(QUEUE))).await?;
    let consumer =
        mq.consumer::<String>(QUEUE).start(|_: Message<String>| async { Ok(()) }).await?;

    let once = std::env::var("ACEMQ_EXAMPLE_ONCE").is_ok();
    let listener = TcpListener::bind(if once { "127.0.0.1:0" } else { "127.0.0.1:8080" }).await?;
    let address = listener.local_addr()?;
    println!("listening on {address}");
    let app = Router::new()
        .route("/ready", get(ready))
        .route("/health", get(health))
        .with_state(mq.clone());
    let stop = async move {
        if once {
            println!("{}", ask(address, "/ready").await.unwrap_or_else(|e| e.to_string()));
            println!("{}", ask(address, "/health").await.unwrap_or_else(|e| e.to_string()));
        } else {
            let _ = tokio::signal::ctrl_c().await;
        }
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    consumer.close().await;
    mq.close().await;
    Ok(())
}

/// Asks as a probe would, and returns the answer.
async fn ask(address: std::net::SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
