//! An order through three steps: one order ends early, one is priced, and one asks for its price.
//!
//! `cargo run --example pipeline`; `ACEMQ_URL` picks another broker than `memory://`.

use std::time::Duration;

use acemq::{AceMq, BoxError, HandlerError, Message, RetryPolicy};
use tokio::sync::mpsc;

const NAME: &str = "acemq.example.pricing";

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    sku: String,
    quantity: u32,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Validated {
    sku: String,
    quantity: u32,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Priced {
    sku: String,
    cents: u64,
}

async fn validate(order: Message<OrderPlaced>) -> Result<Option<Validated>, HandlerError> {
    let OrderPlaced { sku, quantity } = order.into_payload();
    // Nothing to do is no failure: the run ends here.
    Ok((quantity > 0).then_some(Validated { sku, quantity }))
}

async fn price(order: Message<Validated>) -> Result<Option<Priced>, HandlerError> {
    let Validated { sku, quantity } = order.into_payload();
    Ok(Some(Priced { cents: 1995 * u64::from(quantity), sku }))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    let (sender, mut billed) = mpsc::unbounded_channel();
    let pipeline = mq
        .pipeline::<OrderPlaced>(NAME)
        .step("validate", validate)
        .step("price", price)
        .step("bill", move |order: Message<Priced>| {
            let sender = sender.clone();
            async move {
                sender.send(order.payload().cents).map_err(HandlerError::retry)?;
                Ok(Some(order.into_payload()))
            }
        })
        .retry(RetryPolicy::exponential(5, Duration::from_secs(1), Duration::from_secs(30)))
        .concurrency(4)
        .build()
        .await?;

    let order = |quantity| OrderPlaced { sku: "lamp".into(), quantity };
    pipeline.send(&order(0)).await?;
    let run = pipeline.send(&order(2)).await?;
    println!("run {}…: billed {:?} cents", &run[..8], billed.recv().await);

    // Anybody with a requester can wait for the result.
    let requester = mq.requester().await?;
    let priced: Priced =
        requester.request(NAME, "validate", &order(3), Duration::from_secs(5)).await?;
    println!("asked: {} cents for {}", priced.cents, priced.sku);
    while pipeline.completed() + pipeline.ended_early() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = pipeline.stats();
    println!(
        "{} completed, {} ended early, {} failed",
        stats.completed, stats.ended_early, stats.failed
    );

    requester.close().await;
    pipeline.close().await;
    for step in ["validate", "price", "bill"] {
        for suffix in ["", ".dlq", ".parked"] {
            mq.delete_queue(&format!("{NAME}.{step}{suffix}")).await?;
        }
    }
    mq.close().await;
    if (stats.completed, stats.ended_early) == (2, 1) {
        Ok(())
    } else {
        Err("not as promised".into())
    }
}
