//! What all processes know: names, tables, and how to reach the servers.

use std::{fmt::Display, time::Duration};

use acemq::{
    AceMq, OutboxRecord, OutboxStore, PostgresIdempotencyStore, PostgresOutbox, Queue, Topology,
};
use serde::{Deserialize, Serialize};
use sqlx::{
    AssertSqlSafe, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::time::Instant;

use crate::support::{amqp_url, rabbitmqctl::rabbitmqctl, unique};

const TABLES: &str = "
    CREATE TABLE accounts (name text PRIMARY KEY, last bigint NOT NULL);
    CREATE TABLE orders (
        id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
        account text NOT NULL, number bigint NOT NULL, message_ids text[] NOT NULL);
    CREATE TABLE effects (
        seq bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
        pattern text NOT NULL, order_id bigint NOT NULL,
        message_id text NOT NULL, detail text NOT NULL);
    CREATE TABLE saga_steps (
        order_id bigint, step text, done boolean NOT NULL, PRIMARY KEY (order_id, step));
    CREATE TABLE saga_ends (order_id bigint PRIMARY KEY, how text NOT NULL);
    CREATE TABLE calls (id text PRIMARY KEY, caller int NOT NULL, state text NOT NULL);
    CREATE TABLE reply_queues (name text PRIMARY KEY);
";

/// What a customer ordered; the same in every message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub id: i64,
    pub account: String,
    pub number: i64,
}

impl Order {
    /// Mail refuses it: it belongs into the dead letters.
    pub fn is_refused(&self) -> bool {
        is_refused(self.id)
    }

    /// Its run through the pipeline ends at the first step.
    pub fn ends_early(&self) -> bool {
        ends_early(self.id)
    }

    /// The last step of its saga fails, and the others are undone.
    pub fn is_undone(&self) -> bool {
        is_undone(self.id)
    }
}

pub fn is_refused(order: i64) -> bool {
    order % 50 == 7
}

pub fn ends_early(order: i64) -> bool {
    order % 10 == 3
}

pub fn is_undone(order: i64) -> bool {
    order % 4 == 1
}

/// The number in an environment variable.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Repeats what a fault may have disturbed, until it is done. No fault here lasts for a minute.
pub async fn again<T, E: Display>(what: &str, attempt: impl AsyncFn() -> Result<T, E>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) if Instant::now() > deadline => panic!("{what}: {error}"),
            Err(error) => eprintln!("{what}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The queues of the system; every name begins with the same words.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Names {
    pub base: String,
    pub schema: String,
}

impl Names {
    pub fn of(&self, part: &str) -> String {
        format!("{}.{part}", self.base)
    }

    /// Those that the application declares itself.
    fn topology(&self) -> Topology {
        let queues = ["bill", "mail", "plan", "remind", "saga", "prices"];
        queues.iter().fold(Topology::new(), |topology, queue| {
            // Each kill and cut is a return of everything at hand; RabbitMQ 4 allows 20.
            topology.queue(Queue::new(self.of(queue)).delivery_limit(10_000))
        })
    }
}

pub fn postgres_url() -> String {
    std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".to_owned())
}

/// A pool that connects when it is used, so that a database that is away stops no start.
pub fn pool(url: &str, schema: &str, connections: u32) -> PgPool {
    let options: PgConnectOptions = url.parse().unwrap();
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(options.options([("search_path", schema)]))
}

/// One process's way to the servers.
#[derive(Clone)]
pub struct Site {
    pub mq: AceMq,
    pub db: PgPool,
    pub names: Names,
    /// Which process of all that were ever started this is.
    pub number: i32,
}

impl Site {
    pub fn outbox(&self) -> PostgresOutbox {
        PostgresOutbox::new(self.db.clone())
    }

    /// Notes of handled messages. Claims of processes that died end soon.
    pub fn notes(&self) -> PostgresIdempotencyStore {
        PostgresIdempotencyStore::new(self.db.clone()).lease(Duration::from_secs(2))
    }

    /// Notes an effect in a statement of its own.
    pub async fn effect(
        &self,
        pattern: &str,
        order: i64,
        message: &str,
        detail: &str,
    ) -> Result<(), sqlx::Error> {
        effect(&self.db, pattern, order, message, detail).await
    }
}

/// Notes an effect.
pub async fn effect<'a>(
    db: impl sqlx::PgExecutor<'a>,
    pattern: &str,
    order: i64,
    message: &str,
    detail: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO effects (pattern, order_id, message_id, detail) VALUES ($1, $2, $3, $4)",
    )
    .bind(pattern)
    .bind(order)
    .bind(message)
    .bind(detail)
    .execute(db)
    .await
    .map(drop)
}

/// The records of an order, one for each pattern.
pub fn records(
    names: &Names,
    order: &Order,
    ledger: (String, String),
) -> acemq::Result<Vec<OutboxRecord>> {
    let to = |queue: &str| OutboxRecord::json("", names.of(queue), order);
    let mut records: Vec<_> = ["bill", "mail", "plan", "saga", "pipe.check"]
        .into_iter()
        .map(to)
        .collect::<acemq::Result<_>>()?;
    let (exchange, key) = ledger;
    records.push(OutboxRecord::json(exchange, key, order)?.ordering_key(&*order.account));
    Ok(records)
}

pub const PARTITIONS: u32 = 4;

/// The parent's view: around every proxy.
pub struct System {
    pub site: Site,
}

impl System {
    pub async fn create() -> Self {
        let base = unique("shop");
        let schema = base.replace('.', "_");
        let db = pool(&postgres_url(), &schema, 4);
        for sql in [format!("CREATE SCHEMA {schema}"), TABLES.to_owned()] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&db).await.expect("PostgreSQL is up");
        }
        let mq = AceMq::connect(amqp_url()).await.expect("RabbitMQ is up");
        let site = Site { mq, db, names: Names { base, schema }, number: 0 };
        site.outbox().migrate().await.unwrap();
        site.notes().migrate().await.unwrap();
        site.mq.declare(&site.names.topology()).await.unwrap();
        // Every queue that a record is addressed to, before the first record.
        drop(steps_and_ledger(&site).await);
        Self { site }
    }

    /// Every queue of the system with what is in it, acknowledged or not.
    pub async fn queues(&self) -> Vec<(String, u64)> {
        let listed = rabbitmqctl(&["list_queues", "name", "messages"]).await;
        let ours = listed.lines().filter(|line| line.starts_with(&self.site.names.base));
        let pairs = ours.filter_map(|line| line.split_once('\t'));
        pairs.map(|(name, count)| (name.to_owned(), count.trim().parse().unwrap_or(0))).collect()
    }

    /// Waits until nothing is left but what was set aside.
    pub async fn until_drained(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            let queues = self.queues().await;
            let full: Vec<_> = queues
                .iter()
                .filter(|(name, count)| {
                    *count > 0 && !name.ends_with(".dlq") && !name.ends_with(".parked")
                })
                .collect();
            if full.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "not drained after {patience:?}: {full:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn remove(self) {
        for (queue, _) in self.queues().await {
            self.site.mq.delete_queue(&queue).await.unwrap();
        }
        self.site.mq.close().await;
        let sql = format!("DROP SCHEMA {} CASCADE", self.site.names.schema);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.site.db).await.unwrap();
    }

    pub async fn pending(&self) -> acemq::Result<u64> {
        self.site.outbox().pending_count().await
    }
}

async fn steps_and_ledger(site: &Site) -> (acemq::Pipeline<Order>, acemq::OrderedQueue<Order>) {
    let pipeline = crate::steps::pipeline(site, None).only([""; 0]).build().await.unwrap();
    let ledger = crate::accounts::ledger(&site.mq, &site.names).declare().await.unwrap();
    (pipeline, ledger)
}
