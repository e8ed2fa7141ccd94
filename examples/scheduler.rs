//! Reminders that the broker holds: one after a delay, one at a time, and one without a target.
//!
//! `cargo run --example scheduler`; `ACEMQ_URL` picks another broker than `memory://`.

use std::time::Duration;

use acemq::{AceMq, BoxError, Envelope, Ladder, Message, Queue, Topology};
use chrono::{TimeDelta, Utc};
use tokio::sync::mpsc;

const REMINDERS: &str = "acemq.example.reminders";
const PREFIX: &str = "acemq.example.delay";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    mq.declare(&Topology::new().queue(Queue::new(REMINDERS))).await?;

    // The ladder of this crate: never early, and no process in the path until a message is due.
    let scheduler = mq.scheduler().ladder(Ladder::Binary).prefix(PREFIX).await?;

    let (sender, mut arrived) = mpsc::unbounded_channel();
    let consumer = mq
        .consumer::<String>(REMINDERS)
        .start(move |reminder: Message<String>| {
            let sender = sender.clone();
            async move { Ok(sender.send((Utc::now(), reminder))?) }
        })
        .await?;

    let started = Utc::now();
    let basket = Envelope::of("basket.abandoned").correlation("basket-7");
    let text = "your basket is waiting".to_owned();
    let id = scheduler.after_with(Duration::from_secs(2), "", REMINDERS, &text, basket).await?;
    let renewal = started + TimeDelta::seconds(1);
    scheduler.at(renewal, "", REMINDERS, &"your subscription renews".to_owned()).await?;
    scheduler.after(Duration::from_millis(500), "", "acemq.example.nobody", &"lost").await?;

    for _ in 0..2 {
        let (at, reminder) =
            tokio::time::timeout(Duration::from_secs(20), arrived.recv()).await?.ok_or("ended")?;
        let after = (at - started).num_seconds();
        println!(
            "after {after} s: {} ({})",
            reminder.payload(),
            reminder.envelope().message_type()
        );
        if reminder.envelope().correlation_id() == "basket-7" && reminder.id() != id {
            return Err("a message arrives as the one that was scheduled".into());
        }
    }
    while scheduler.stats().failed == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let dead = format!("{}.dlq", scheduler.control_queue());
    println!("without a target: in {dead}");

    scheduler.close().await;
    consumer.close().await;
    let control = scheduler.control_queue();
    let parked = format!("{control}.parked");
    let mut queues: Vec<String> = (0..25).map(|rung| format!("{PREFIX}.rung.{rung}")).collect();
    queues.extend([control, dead, parked, REMINDERS.to_owned()]);
    queues.extend([format!("{REMINDERS}.dlq"), format!("{REMINDERS}.parked")]);
    for queue in queues {
        mq.delete_queue(&queue).await?;
    }
    mq.close().await;
    Ok(())
}
