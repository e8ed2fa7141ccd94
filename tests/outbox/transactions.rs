//! Commits that come late, overlap, or never come.

use std::sync::Arc;

use acemq::{OutboxRecord, OutboxRelay};

use crate::{
    ledger::Ledger,
    support::{Broker, Fixture},
    world::{Pg, World, on_databases, run},
};

on_databases!(a_rollback_publishes_nothing_and_a_commit_everything);

fn text(queue: &str, text: &str) -> OutboxRecord {
    OutboxRecord::bytes("", queue, "text/plain", text.to_owned())
}

async fn a_rollback_publishes_nothing_and_a_commit_everything<W: World>(
    fx: Arc<Fixture>,
    world: W,
) {
    let queue = fx.queue("orders").await;
    let mut ledger = Ledger::of(&fx.mq, &queue).await;
    let mut tx = world.begin().await;
    world.add_in(&mut tx, vec![text(&queue, "no:1"), text(&queue, "no:2")]).await;
    W::rollback(tx).await;
    let mut tx = world.begin().await;
    world.add_in(&mut tx, vec![text(&queue, "no:3")]).await;
    drop(tx);
    world.add(vec![text(&queue, "yes:1")]).await;
    OutboxRelay::new(&fx.mq, world.outbox()).drain(0).await.unwrap();
    ledger.until_length(1).await;
    assert_eq!(ledger.texts(), ["yes:1"]);
}

/// Field case B01, with keys: what added first and committed last goes out when it is there, after
/// the one that was published by then, and is never lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_commits_late_is_published_all_the_same() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let mut ledger = Ledger::of(&fx.mq, &queue).await;
        let relay = OutboxRelay::new(&fx.mq, world.outbox());
        let mut random = fastrand::Rng::with_seed(1);
        let mut committed = Vec::new();
        for round in 0..50 {
            let mut open = Vec::new();
            for session in 0..3 {
                let (name, keyed) = (format!("round{round}:{session}"), round % 2 == 0);
                let mut tx = world.begin().await;
                let record = text(&queue, &name);
                let record = if keyed { record.ordering_key("k") } else { record };
                world.add_in(&mut tx, vec![record]).await;
                open.push((name, tx));
            }
            random.shuffle(&mut open);
            for (name, tx) in open {
                Pg::commit(tx).await;
                committed.push(name);
                assert_eq!(relay.drain(0).await.unwrap().published(), 1, "at once, in any order");
            }
        }
        ledger.until_length(committed.len()).await;
        assert_eq!(ledger.texts(), committed, "in the order of the commits");
    })
    .await;
}
