//! Four relay processes on one table, killed at random while records are added.
//!
//! `ACEMQ_RELAY_RECORDS` sets the number of records (default 2,000), `ACEMQ_KILLS` the kills
//! (default 15), `ACEMQ_SEED` the seed of both.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use acemq::{AceMq, OutboxRecord, OutboxRelay, OutboxStore};

use crate::{
    ledger::{Audit, Ledger},
    support::{Broker, Fixture, amqp_url, eventually},
    world::{Lite, Pg, World, run},
};

const RELAYS: usize = 4;
const BATCH: u32 = 50;
const KEYS: usize = 20;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_killed_relays_lose_nothing_invent_nothing_and_keep_the_order_of_each_key() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        kill_and_count(&fx, &world, setting("ACEMQ_RELAY_RECORDS", 2000)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_killed_relays_lose_nothing_invent_nothing_and_keep_the_order_of_each_key() {
    run(Broker::RabbitMq, |fx, world: Lite| async move {
        kill_and_count(&fx, &world, setting("ACEMQ_RELAY_RECORDS", 2000) / 2).await;
    })
    .await;
}

async fn kill_and_count<W: World>(fx: &Fixture, world: &W, records: usize) {
    let queue = fx.queue("orders").await;
    let mut ledger = Ledger::of(&fx.mq, &queue).await;
    let mut random = fastrand::Rng::with_seed(setting("ACEMQ_SEED", 7) as u64);
    let writer = tokio::spawn(write(world.clone(), queue.clone(), records, random.fork()));
    let mut relays: Vec<Relay> = (0..RELAYS).map(|_| Relay::spawn::<W>(world.name())).collect();

    let kills = setting("ACEMQ_KILLS", 15);
    for kill in 1..=kills {
        // At a random point of progress, not of time: each kill hits relays at work.
        let most = records * kill / (kills + 1);
        let next = random.usize(ledger.len().min(most)..=most);
        ledger.until_length(next).await;
        relays[random.usize(..RELAYS)] = Relay::spawn::<W>(world.name());
    }
    let committed = writer.await.unwrap();
    // In steps: the patience is for progress, not for a backlog of any size.
    while ledger.len() < committed.len() {
        ledger.until_length((ledger.len() + 500).min(committed.len())).await;
    }
    eventually("everything to be published and marked", async || {
        world.outbox().pending_count().await.unwrap() == 0
    })
    .await;
    drop(relays);
    // Marked is published, but what is published may still be on its way to the ledger.
    eventually("every committed message to come", async || ledger.audit(&committed).lost == 0)
        .await;

    let audit = ledger.audit(&committed);
    println!("{}: {} records, {kills} kills, {audit:?}", W::NAME, committed.len());
    let bound = kills * usize::try_from(BATCH).unwrap() * 4;
    assert!(audit.duplicates <= bound, "{audit:?}");
    let ideal = Audit { duplicates: audit.duplicates, ..IDEAL };
    assert_eq!(audit, ideal);
}

const IDEAL: Audit = Audit { lost: 0, phantoms: 0, duplicates: 0, renamed: 0, inversions: 0 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_healthy_relays_publish_each_record_once() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let mut ledger = Ledger::of(&fx.mq, &queue).await;
        let relays: Vec<_> = (0..RELAYS)
            .map(|_| {
                let relay = OutboxRelay::new(&fx.mq, world.outbox()).batch_size(BATCH);
                relay.poll_interval(Duration::from_millis(10)).start()
            })
            .collect();
        let random = fastrand::Rng::with_seed(11);
        let committed = write(world.clone(), queue.clone(), 3000, random).await;
        ledger.until_length(committed.len()).await;
        eventually("all marks", async || world.outbox().pending_count().await.unwrap() == 0).await;
        for relay in relays {
            relay.close().await;
            assert_eq!((relay.lost(), relay.failed()), (0, 0));
        }
        assert_eq!(ledger.audit(&committed), IDEAL);
    })
    .await;
}

/// Adds records in transactions of random size, some of which roll back; returns the committed.
async fn write<W: World>(
    world: W,
    queue: String,
    records: usize,
    mut random: fastrand::Rng,
) -> Vec<String> {
    let mut committed = Vec::new();
    let mut next = vec![0_u64; KEYS + 1];
    while committed.len() < records {
        let size = random.usize(1..=60);
        let mut advanced = next.clone();
        let texts: Vec<String> = (0..size)
            .map(|_| {
                // The last one stands for all records without a key.
                let key = random.usize(..2 * KEYS).min(KEYS);
                advanced[key] += 1;
                let name = if key == KEYS { "free".to_owned() } else { format!("key{key}") };
                format!("{name}:{}", advanced[key])
            })
            .collect();
        let rolls_back = random.u8(..5) == 0;
        let texts: Vec<String> = if rolls_back {
            texts.into_iter().map(|text| format!("phantom-{text}")).collect()
        } else {
            texts
        };
        let mut tx = world.begin().await;
        world.add_in(&mut tx, texts.iter().map(|text| record(&queue, text)).collect()).await;
        if rolls_back {
            W::rollback(tx).await;
        } else {
            W::commit(tx).await;
            committed.extend(texts);
            next = advanced;
        }
    }
    committed
}

fn record(queue: &str, text: &str) -> OutboxRecord {
    let record = OutboxRecord::bytes("", queue, "text/plain", text.to_owned());
    match text.split_once(':') {
        Some((key, _)) if key != "free" => record.ordering_key(key),
        _ => record,
    }
}

/// A relay in a process of its own; dropping it kills the process.
pub struct Relay(Child);

impl Relay {
    fn spawn<W: World>(name: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["kills::child", "--exact", "--ignored", "--nocapture"])
            .env("ACEMQ_CHILD", format!("{} {name}", W::NAME))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the relay process of the kill tests, which start it by its name"]
async fn child() {
    let order = std::env::var("ACEMQ_CHILD").expect("only the kill tests start this");
    let (database, name) = order.split_once(' ').unwrap();
    match database {
        "postgres" => relay(Pg::open(name).await).await,
        _ => relay(Lite::open(name).await).await,
    }
}

async fn relay<W: World>(world: W) {
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let _relay = OutboxRelay::new(&mq, world.outbox())
        .batch_size(BATCH)
        .lease(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(20))
        .start();
    std::future::pending::<()>().await;
}
