//! A message that comes twice is handled once.
//!
//! `cargo run --example idempotent_consumer`; `ACEMQ_URL` picks another broker than `memory://`.

use std::time::Duration;

use acemq::{
    AceMq, BoxError, Envelope, HandlerError, MemoryIdempotencyStore, Message, Queue, RetryPolicy,
    Topology,
};

const QUEUE: &str = "acemq.example.mails";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    mq.declare(&Topology::new().queue(Queue::new(QUEUE))).await?;

    // A service with several processes uses a database's store; this one is for one process.
    let consumer = mq
        .consumer::<String>(QUEUE)
        .retry(RetryPolicy::fixed(3, Duration::from_millis(20)))
        .idempotent(MemoryIdempotencyStore::new())
        .start(|message: Message<String>| async move {
            if message.payload() == "flaky" && message.attempt() == 1 {
                println!("{}: failed once, which gives its claim back", message.payload());
                return Err(HandlerError::retry("the mail server is busy"));
            }
            println!("{}: sent", message.payload());
            Ok(())
        })
        .await?;

    let mails = mq.publisher::<String>("", QUEUE);
    for mail in ["welcome", "flaky"] {
        // The same id is the same message, however often it is published.
        let envelope = Envelope::of("mail.requested");
        for _ in 0..3 {
            mails.send_with(&mail.to_owned(), envelope.clone()).await?;
        }
    }
    while consumer.stats().acked + consumer.stats().duplicates < 6 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = consumer.stats();
    println!("handled {}, recognised as duplicates {}", stats.acked, stats.duplicates);
    assert_eq!((stats.acked, stats.duplicates), (2, 4));

    consumer.close().await;
    for suffix in ["", ".dlq", ".parked"] {
        mq.delete_queue(&format!("{QUEUE}{suffix}")).await?;
    }
    mq.close().await;
    Ok(())
}
