//! The shop as a process of its own, with a database and names that no other test has.

use std::{process::Stdio, time::Duration};

use lapin::{
    Connection, ConnectionProperties,
    options::{ExchangeDeleteOptions, QueueDeleteOptions},
};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(60);

/// Where a shop keeps everything; it outlives the processes.
pub struct Premises {
    prefix: String,
    broker: String,
    server: PgPool,
    database: String,
    pub pool: PgPool,
}

/// One process.
pub struct Shop {
    child: Child,
    address: String,
}

impl Premises {
    pub async fn new() -> Self {
        let setting = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
        let broker = setting("ACEMQ_TEST_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
        let server = setting("ACEMQ_TEST_POSTGRES", "postgres://postgres@127.0.0.1:5432/test");
        let prefix = format!("shop_t_{}", &Uuid::new_v4().simple().to_string()[..12]);
        let (host, _) = server.rsplit_once('/').unwrap();
        let database = format!("{host}/{prefix}");
        let server = PgPool::connect(&server).await.unwrap();
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {prefix}")))
            .execute(&server)
            .await
            .unwrap();
        let pool = PgPool::connect(&database).await.unwrap();
        Self { prefix, broker, server, database, pool }
    }

    /// Starts a process and waits until it listens.
    pub async fn open(&self) -> Shop {
        let mut child = Command::new(env!("CARGO_BIN_EXE_acemq-shop"))
            .env("SHOP_LISTEN", "127.0.0.1:0")
            .env("SHOP_PREFIX", &self.prefix)
            .env("SHOP_SHUTDOWN_SECONDS", "1")
            .env("SHOP_REMINDER_SECONDS", "1")
            .env("ACEMQ_URL", &self.broker)
            .env("DATABASE_URL", &self.database)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        let line = line.expect("the shop says where it listens; its log says why not");
        let address = line.strip_prefix("listening on ").unwrap().to_owned();
        Shop { child, address }
    }

    pub async fn count(&self, select: &'static str) -> i64 {
        sqlx::query_scalar(select).fetch_one(&self.pool).await.unwrap()
    }

    /// Waits until a query finds this number.
    pub async fn until(&self, select: &'static str, number: i64) {
        eventually(select, async || self.count(select).await == number).await;
    }

    /// Removes the database, and every queue and exchange.
    pub async fn tear_down(self) {
        self.pool.close().await;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.prefix);
        sqlx::query(AssertSqlSafe(drop)).execute(&self.server).await.unwrap();
        let broker = Connection::connect(&self.broker, ConnectionProperties::default());
        let channel = broker.await.unwrap().create_channel().await.unwrap();
        for queue in queues(&self.prefix) {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
        }
        for exchange in ["orders", "ledger", "schedule"] {
            let exchange = format!("{}.{exchange}", self.prefix);
            let options = ExchangeDeleteOptions::default();
            channel.exchange_delete(exchange.into(), options).await.unwrap();
        }
    }
}

/// Every queue that a shop, or acemq for it, declares.
fn queues(prefix: &str) -> Vec<String> {
    let named = ["fulfilment", "reviews", "reminders", "cancellations", "offers", "schedule.due"];
    let mut consumed: Vec<String> = named.map(String::from).into();
    consumed.extend((0..4).map(|partition| format!("ledger.p{partition}")));
    let mut queues = vec![format!("{prefix}.ledger.partitions")];
    for queue in consumed {
        let beside = ["", ".dlq", ".parked"];
        queues.extend(beside.map(|suffix| format!("{prefix}.{queue}{suffix}")));
        queues.extend([1, 2, 4, 8, 16].map(|s| format!("{prefix}.{queue}.retry.{s}s")));
    }
    let rungs = ["1s", "10s", "1m", "10m", "1h"];
    queues.extend(rungs.map(|rung| format!("{prefix}.schedule.{rung}")));
    queues
}

impl Shop {
    /// Sends a signal as an orchestrator does, and waits for the end.
    pub async fn signalled(mut self, signal: &str) -> std::process::ExitStatus {
        let id = self.child.id().unwrap().to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status().await.unwrap();
        assert!(sent.success());
        timeout(PATIENCE, self.child.wait()).await.expect("the shop ends").unwrap()
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, String::new()).await
    }

    pub async fn order(&self, id: Uuid, customer: &str, sku: &str, quantity: u16) -> (u16, Value) {
        let order = serde_json::json!(
            { "id": id, "customer": customer, "sku": sku, "quantity": quantity });
        self.ask("POST", "/orders", order.to_string()).await
    }

    /// Waits until an order has a status, and returns it.
    pub async fn until_order_is(&self, id: Uuid, status: &str) -> Value {
        let path = format!("/orders/{id}");
        eventually(status, async || self.get(&path).await.1["status"] == status).await;
        self.get(&path).await.1
    }

    async fn ask(&self, method: &str, path: &str, body: String) -> (u16, Value) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }
}

pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
