//! A policy whose route is its own: underwriting adds a stop where the sum is high, and when the
//! last stop refuses, what was done is undone on the way back.
//!
//! `cargo run --example routing_slip`; `ACEMQ_URL` picks another broker than `memory://`.

use acemq::{
    AceMq, BoxError, Envelope, Forward, HandlerError, Itinerary, Message, Queue, SlipStop, Topology,
};
use tokio::sync::mpsc;

const UNDERWRITE: &str = "acemq.example.underwrite";
const UNDO: &str = "acemq.example.underwrite.undo";
const AUDIT: &str = "acemq.example.audit";
const BILL: &str = "acemq.example.bill";

async fn underwrite(policy: Message<u64>) -> Result<Forward, HandlerError> {
    println!("policy of {}: underwritten", policy.payload());
    let forward = Forward::unchanged().undo_at("", UNDO, "contract 7");
    Ok(if *policy.payload() > 1000 {
        forward.revise(|route| route.insert_next("", AUDIT))
    } else {
        forward
    })
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    let queues = [UNDERWRITE, UNDO, AUDIT, BILL];
    let topology = Topology::new();
    mq.declare(&queues.into_iter().fold(topology, |all, name| all.queue(Queue::new(name)))).await?;

    let (sender, mut events) = mpsc::unbounded_channel();
    let (billed, undone) = (sender.clone(), sender);
    let stops = [
        mq.stop(UNDERWRITE, underwrite).await?,
        mq.stop(AUDIT, |policy: Message<u64>| async move {
            println!("policy of {}: audited", policy.payload());
            Ok(Forward::unchanged())
        })
        .await?,
        mq.stop(BILL, move |policy: Message<u64>| {
            let billed = billed.clone();
            async move {
                if *policy.payload() == 13 {
                    return Err(HandlerError::reject("the bank refuses"));
                }
                billed
                    .send(format!("policy of {}: billed", policy.payload()))
                    .map_err(HandlerError::retry)?;
                Ok(Forward::unchanged())
            }
        })
        .await?,
        mq.slip_stop(UNDO)
            .start_undo(move |policy: Message<u64>| {
                let data = SlipStop::undo_data(&policy).unwrap_or_default().to_owned();
                let told = undone.send(format!("policy of {}: {data} undone", policy.payload()));
                async move { told.map_err(HandlerError::retry) }
            })
            .await?,
    ];

    let route = Itinerary::new().then("", UNDERWRITE).then("", BILL);
    for sum in [500_u64, 5000, 13] {
        let envelope =
            Envelope::of("policy.submitted").header(Itinerary::HEADER, route.to_header());
        mq.publisher("", UNDERWRITE).send_with(&sum, envelope).await?;
        println!("{}", events.recv().await.ok_or("ended")?);
    }
    let audited = stops[1].stats().forwarded;

    for stop in &stops {
        stop.close().await;
    }
    for queue in queues {
        for suffix in ["", ".dlq", ".parked"] {
            mq.delete_queue(&format!("{queue}{suffix}")).await?;
        }
    }
    mq.close().await;
    if audited == 1 { Ok(()) } else { Err("one policy is audited".into()) }
}
