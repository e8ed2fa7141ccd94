//! Four relay processes on one table, killed again and again while records are added.
//!
//! `ACEMQ_RELAY_RECORDS` sets how many records; the short form is 3,000.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use acemq::{AceMq, Envelope, Message, OutboxRecord, OutboxRelay, OutboxStore, PostgresOutbox};
use sqlx::{AssertSqlSafe, PgPool, postgres::PgPoolOptions};

use crate::support::{Broker, amqp_url, eventually, run};

const KEYS: usize = 20;

fn records() -> usize {
    std::env::var("ACEMQ_RELAY_RECORDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3000)
}

pub async fn pool() -> PgPool {
    let url = std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".to_owned());
    let options = PgPoolOptions::new().max_connections(6);
    options.connect(&url).await.expect("PostgreSQL is up; see scripts/services.sh")
}

pub fn unique_prefix() -> String {
    format!("t{}_", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

pub async fn drop_tables(pool: &PgPool, prefix: &str) {
    for table in ["outbox", "schema"] {
        let sql = format!("DROP TABLE IF EXISTS {prefix}{table}");
        sqlx::query(AssertSqlSafe(sql)).execute(pool).await.unwrap();
    }
}

/// What arrived: each id once, in the order of its first arrival, per key.
#[derive(Default)]
struct Arrived {
    first: HashSet<String>,
    duplicates: usize,
    orders: BTreeMap<String, Vec<i64>>,
}

impl Arrived {
    fn note(&mut self, message: &Message<usize>) {
        if !self.first.insert(message.id().to_owned()) {
            self.duplicates += 1;
            return;
        }
        let header = |name| message.headers().get(name);
        let key = header("key").and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        let number = header("number").and_then(acemq::HeaderValue::as_i64).unwrap();
        self.orders.entry(key).or_default().push(number);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_relays_killed_at_random_lose_nothing_invent_nothing_and_keep_the_order_of_keys() {
    let (pool, prefix) = (pool().await, unique_prefix());
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix(&prefix).unwrap();
    outbox.migrate().await.unwrap();
    run(Broker::RabbitMq, |fx| {
        let (pool, prefix, outbox) = (pool.clone(), prefix.clone(), outbox.clone());
        async move {
            let queue = fx.queue("events").await;
            let arrived = Arc::new(Mutex::new(Arrived::default()));
            let noted = arrived.clone();
            let consumer = fx
                .mq
                .consumer::<usize>(queue.as_str())
                .start(move |message: Message<usize>| {
                    noted.lock().unwrap().note(&message);
                    std::future::ready(Ok(()))
                })
                .await
                .unwrap();
            let mut relays: Vec<Child> = (0..4).map(|_| spawn(&prefix)).collect();
            let mut random = fastrand::Rng::with_seed(11);
            let (mut committed, mut rolled_back) = (HashSet::new(), HashSet::new());
            let mut numbers: HashMap<usize, i64> = HashMap::new();
            let mut kills = 0;
            while committed.len() < records() {
                let key = random.usize(..KEYS);
                let commit = random.u8(..10) != 0;
                let number = numbers.get(&key).copied().unwrap_or_default();
                let batch: Vec<OutboxRecord> =
                    (0..5).map(|step| record(&queue, key, number + step)).collect();
                let ids = batch.iter().map(|record| record.id().to_owned());
                if commit {
                    committed.extend(ids)
                } else {
                    rolled_back.extend(ids)
                }
                let mut tx = pool.begin().await.unwrap();
                outbox.add_all(&mut tx, batch).await.unwrap();
                if commit {
                    tx.commit().await.unwrap();
                    numbers.insert(key, number + 5);
                } else {
                    tx.rollback().await.unwrap();
                }
                if random.u8(..30) == 0 {
                    let victim = random.usize(..relays.len());
                    relays[victim].kill().unwrap();
                    relays[victim].wait().unwrap();
                    relays[victim] = spawn(&prefix);
                    kills += 1;
                }
            }
            eventually("every committed record to arrive", async || {
                arrived.lock().unwrap().first.len() >= committed.len()
            })
            .await;
            eventually("every record to be marked", async || {
                outbox.pending_count().await.unwrap() == 0
            })
            .await;
            for mut relay in relays {
                relay.kill().unwrap();
                relay.wait().unwrap();
            }
            consumer.close().await;
            let arrived = arrived.lock().unwrap();
            println!(
                "{} records, {kills} kills: {} duplicates",
                committed.len(),
                arrived.duplicates
            );
            assert!(kills > 3, "nothing was killed");
            assert!(arrived.first.is_disjoint(&rolled_back), "a rolled-back record arrived");
            assert_eq!(arrived.first, committed);
            for (key, numbers) in &arrived.orders {
                assert!(numbers.is_sorted(), "{key}: {numbers:?}");
            }
        }
    })
    .await;
    drop_tables(&pool, &prefix).await;
}

fn record(queue: &str, key: usize, number: i64) -> OutboxRecord {
    let key = format!("key-{key}");
    let envelope = Envelope::new().header("key", key.as_str()).header("number", number);
    OutboxRecord::json("", queue, &number).unwrap().envelope(envelope).ordering_key(key)
}

fn spawn(prefix: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["relays::child", "--exact", "--ignored", "--nocapture"])
        .env("ACEMQ_CHILD", prefix)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child process of the relay tests, which start it by its name"]
async fn child() {
    let prefix = std::env::var("ACEMQ_CHILD").expect("only the relay tests start this");
    let outbox = PostgresOutbox::new(pool().await).table_prefix(&prefix).unwrap();
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let _relay = OutboxRelay::new(&mq, outbox)
        .batch_size(50)
        .poll_interval(Duration::from_millis(20))
        .lease(Duration::from_secs(1))
        .start();
    std::future::pending::<()>().await;
}
