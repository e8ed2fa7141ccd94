//! One key from the commit to the handler: the ordering key of an outbox record is the key of an
//! ordered queue.
//!
//! `cargo run --example ordered_end_to_end`; `ACEMQ_URL` picks another broker than `memory://`.

use acemq::{AceMq, BoxError, Message, OutboxRecord, OutboxRelay, SqliteOutbox};
use sqlx::sqlite::SqlitePoolOptions;
use tokio::sync::mpsc;

const NAME: &str = "acemq.example.movements";
const PARTITIONS: u32 = 4;

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Moved {
    account: String,
    number: u32,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("ACEMQ_URL").unwrap_or_else(|_| "memory://".into());
    let mq = AceMq::connect(url).await?;
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    let outbox = SqliteOutbox::new(pool.clone());
    outbox.migrate().await?;
    let (sender, mut handled) = mpsc::unbounded_channel();
    let movements = mq
        .ordered::<Moved>(NAME)
        .partitions(PARTITIONS)
        .keyed_by(|moved: &Moved| moved.account.clone())
        .prefetch(20)
        .consume(move |moved: Message<Moved>| {
            let sent = sender.send(moved.into_payload());
            async move { Ok(sent?) }
        })
        .await?;

    // Two relays, as in two processes: they keep the order of each key between them.
    let relays = [0, 1].map(|_| OutboxRelay::new(&mq, outbox.clone()).start());
    for number in 0..50 {
        let mut tx = outbox.begin().await?;
        for account in ["alice", "bob", "carol"] {
            let (exchange, routing_key) = movements.address_of(account)?;
            let moved = Moved { account: account.into(), number };
            let record = OutboxRecord::json(exchange, routing_key, &moved)?;
            outbox.add(&mut tx, record.ordering_key(account)).await?;
        }
        tx.commit().await?;
    }
    outbox.wake();

    let mut next = std::collections::HashMap::<String, u32>::new();
    for _ in 0..150 {
        let moved = handled.recv().await.ok_or("ended")?;
        let expected = next.entry(moved.account.clone()).or_default();
        if moved.number != *expected {
            return Err(format!("{moved:?} instead of {expected}").into());
        }
        *expected += 1;
    }
    println!("150 movements of {} accounts, each in the order of its commits", next.len());

    for relay in relays {
        relay.close().await;
    }
    movements.close().await;
    let mut queues = vec![format!("{NAME}.partitions")];
    for partition in 0..PARTITIONS {
        queues.extend(["", ".dlq", ".parked"].map(|suffix| format!("{NAME}.p{partition}{suffix}")));
    }
    for queue in queues {
        mq.delete_queue(&queue).await?;
    }
    mq.close().await;
    Ok(())
}
