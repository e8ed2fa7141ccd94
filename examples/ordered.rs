//! A ledger: events of one account in their order, accounts side by side, and a halt that is seen.
//!
//! `cargo run --example ordered`; `ACEMQ_URL` picks another broker than `memory://`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use acemq::{AceMq, BoxError, HandlerError, Message, OnFailure};
use tokio::sync::mpsc;

const NAME: &str = "acemq.example.accounts";
const PARTITIONS: u32 = 4;

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Booked {
    account: String,
    cents: i64,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    let (sender, mut applied) = mpsc::unbounded_channel();
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let accounts = mq
        .ordered::<Booked>(NAME)
        .partitions(PARTITIONS)
        .keyed_by(|event: &Booked| event.account.clone())
        .on_failure(OnFailure::Stop)
        .consume(move |event: Message<Booked>| {
            let (sender, mended) = (sender.clone(), is_mended.load(Ordering::SeqCst));
            async move {
                let event = event.into_payload();
                if event.cents == 0 && !mended {
                    return Err(HandlerError::retry("an event that cannot be applied"));
                }
                Ok(sender.send(event)?)
            }
        })
        .await?;

    for cents in [100, 0, -30] {
        for account in ["alice", "bob"] {
            let cents = if account == "bob" && cents == 0 { 5 } else { cents };
            accounts.send(&Booked { account: account.into(), cents }).await?;
        }
    }
    while accounts.halted_partitions().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let halted = accounts.halted_partitions();
    println!(
        "halted: partition {halted:?}, the queue of alice is {}",
        accounts.queue_for("alice")?
    );

    // Somebody mends the cause; the partition goes on with the event that halted it.
    mended.store(true, Ordering::SeqCst);
    let mut alice = Vec::new();
    for _ in 0..6 {
        for partition in &halted {
            let _ = accounts.resume(*partition);
        }
        let event = applied.recv().await.ok_or("ended")?;
        println!("{}: {}", event.account, event.cents);
        if event.account == "alice" {
            alice.push(event.cents);
        }
    }
    accounts.close().await;
    let mut queues = vec![format!("{NAME}.partitions")];
    for partition in 0..PARTITIONS {
        queues.extend(["", ".dlq", ".parked"].map(|suffix| format!("{NAME}.p{partition}{suffix}")));
    }
    for queue in queues {
        mq.delete_queue(&queue).await?;
    }
    mq.close().await;
    if alice == [100, 0, -30] { Ok(()) } else { Err(format!("not in order: {alice:?}").into()) }
}
