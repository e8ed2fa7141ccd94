//! Dead letters are looked at, and those that can work now are moved back.
//!
//! `cargo run --example replay_dead_letters`; `ACEMQ_URL` picks another broker than `memory://`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use acemq::{
    AceMq, BoxError, HandlerError, Message, Queue, RetryPolicy, Topology, consume::ReplayFilter,
};

const QUEUE: &str = "acemq.example.invoices";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    mq.declare(&Topology::new().queue(Queue::new(QUEUE))).await?;
    let printer_works = Arc::new(AtomicBool::new(false));
    let works = printer_works.clone();
    let consumer = mq
        .consumer::<u32>(QUEUE)
        .retry(RetryPolicy::fixed(2, Duration::from_millis(10)))
        .start(move |message: Message<u32>| {
            let works = works.load(Ordering::SeqCst);
            async move {
                match message.payload() {
                    13 => Err(HandlerError::reject("nobody lives at number 13")),
                    _ if !works => Err(HandlerError::retry("the printer is on fire")),
                    number => {
                        println!("invoice {number}: printed");
                        Ok(())
                    }
                }
            }
        })
        .await?;
    let outcome = mq.publisher::<u32>("", QUEUE).send_all(&[11, 12, 13, 14]).await;
    outcome.into_result()?;
    let dead_letters = format!("{QUEUE}.dlq");
    while mq.queue_length(&dead_letters).await? != Some(4) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    printer_works.store(true, Ordering::SeqCst);
    let replay = mq
        .replay(dead_letters.as_str())
        .filter(ReplayFilter::new().error_contains("printer"))
        .on_progress(|progress| println!("replay: {} moved so far", progress.moved));
    for candidate in replay.preview(10).await? {
        println!("dead letter: {}", candidate.error().unwrap_or("no reason given"));
    }
    let report = replay.run().await?;
    println!("moved {}, left in its place {}", report.moved(), report.skipped());
    assert_eq!((report.moved(), report.skipped()), (3, 1));
    while consumer.stats().acked < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    consumer.close().await;
    for suffix in ["", ".dlq", ".parked"] {
        mq.delete_queue(&format!("{QUEUE}{suffix}")).await?;
    }
    mq.close().await;
    Ok(())
}
