//! A question and its answer, a question without one, and one question to many.
//!
//! `cargo run --example request_reply`; `ACEMQ_URL` picks another broker than `memory://`.

use std::time::Duration;

use acemq::{AceMq, BoxError, Exchange, Queue, RequestError, ResponderError, Topology};
use futures::StreamExt;

const PRICES: &str = "acemq.example.prices";
const QUOTES: &str = "acemq.example.quotes";

#[derive(serde::Serialize, serde::Deserialize)]
struct PriceRequest {
    sku: String,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Price {
    cents: u64,
}

async fn price_of(request: PriceRequest) -> Result<Price, ResponderError> {
    match request.sku.as_str() {
        "lamp" => Ok(Price { cents: 1995 }),
        sku => Err(ResponderError::new("PriceNotFound", format!("no price for {sku}"))),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    let carriers = ["acemq.example.slow", "acemq.example.fast"];
    let mut topology =
        Topology::new().queue(Queue::new(PRICES)).exchange(Exchange::fanout(QUOTES).auto_delete());
    for carrier in carriers {
        topology = topology.queue(Queue::new(carrier)).bind(carrier, QUOTES, "");
    }
    mq.declare(&topology).await?;

    let mut responders = vec![mq.respond(PRICES, price_of).await?];
    for (carrier, cents) in carriers.into_iter().zip([400, 900]) {
        let quote =
            move |kg: u64| async move { Ok::<_, ResponderError>(Price { cents: kg * cents }) };
        responders.push(mq.respond(carrier, quote).await?);
    }

    // One requester for the whole application: it owns one reply queue.
    let requester = mq.requester().await?;
    let timeout = Duration::from_secs(5);
    for sku in ["lamp", "unicorn"] {
        let request = PriceRequest { sku: sku.into() };
        match requester.request::<_, Price>("", PRICES, &request, timeout).await {
            Ok(price) => println!("{sku}: {} cents", price.cents),
            Err(RequestError::ResponderFailed { error_type, message }) => {
                println!("{sku}: {error_type}, {message}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let mut quotes = requester.request_many::<_, Price>(QUOTES, "", &3_u64, 2, timeout).await?;
    while let Some(quote) = quotes.next().await {
        println!("a carrier wants {} cents", quote?.cents);
    }
    println!("answered {}, failed {}", requester.stats().answered, requester.stats().failed);

    requester.close().await;
    for responder in responders {
        responder.close().await;
    }
    for queue in carriers.into_iter().chain([PRICES]) {
        for suffix in ["", ".dlq", ".parked"] {
            mq.delete_queue(&format!("{queue}{suffix}")).await?;
        }
    }
    mq.close().await;
    Ok(())
}
