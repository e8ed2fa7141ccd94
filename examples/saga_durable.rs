//! An order that survives the crash of its process: a first process dies half-way, a second one goes
//! on from the journal.
//!
//! `cargo run --example saga_durable`; it needs no broker, and keeps an SQLite file while it runs.

use std::process::Command;

use acemq::{BoxError, DurableSaga, RunStatus, Saga, SqliteSagaJournal, StepContext, StepError};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    id: u32,
    payment: Option<String>,
}

async fn take_payment(mut order: Order) -> Result<Order, StepError> {
    let step = StepContext::current().ok_or_else(|| StepError::fatal("not in a saga"))?;
    // The provider recognises a repetition by this key.
    order.payment = Some(step.idempotency_key());
    println!("process {}: paid, attempt {}", std::process::id(), step.attempt());
    Ok(order)
}

async fn refund(order: Order) -> Result<(), StepError> {
    println!("process {}: refunded {:?}", std::process::id(), order.payment);
    Ok(())
}

async fn reserve(order: Order) -> Result<(), StepError> {
    let attempt = StepContext::current().map_or(0, |step| step.attempt());
    println!("process {}: reserves for {}, attempt {attempt}", std::process::id(), order.id);
    if std::env::var_os("DIES").is_some() {
        std::process::abort(); // nobody knows whether anything was reserved
    }
    Ok(())
}

async fn open(file: &str) -> Result<DurableSaga<Order, SqliteSagaJournal>, BoxError> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let journal = SqliteSagaJournal::new(SqlitePoolOptions::new().connect_with(options).await?);
    journal.migrate().await?;
    Ok(Saga::<Order>::named("fulfil-order")
        .durable(journal)
        .lease(std::time::Duration::from_millis(500)) // after which others may take a run over
        .step("take-payment", take_payment)
        .compensate_with(refund)
        .step("reserve-stock", reserve)
        .build()?)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    if let Ok(file) = std::env::var("DIES") {
        let _ = open(&file).await?.run("order-1", &Order { id: 1, payment: None }).await?;
        return Err("it should have died".into());
    }
    let file = std::env::temp_dir().join(format!("saga-durable-{}.db", std::process::id()));
    let file = file.to_string_lossy();
    let first = Command::new(std::env::current_exe()?).env("DIES", &*file).status()?;
    println!("the first process ended: {first}");

    // A service would keep a worker running; waiting for the outcome drives the run as well.
    let saga = open(&file).await?;
    let started = saga.start("order-1", &Order { id: 1, payment: None }).await?;
    let outcome = saga.outcome(started.id).await?;
    println!("the order is complete: {}, {:?}", outcome.is_complete(), outcome.state());

    let run = saga.status(started.id).await?.ok_or("the run is gone")?;
    let _ = std::fs::remove_file(&*file);
    let kept = !first.success() && !started.is_new && run.status() == RunStatus::Complete;
    if kept { Ok(()) } else { Err("not as promised".into()) }
}
