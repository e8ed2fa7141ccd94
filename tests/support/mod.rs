//! What the integration tests share: a broker of each kind, unique names, and waiting for events.

#![allow(dead_code)] // each test binary uses its own part

pub mod ledger;
pub mod proxy;
pub mod rabbitmqctl;
pub mod server;

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use acemq::{AceMq, ConnectOptions, ConnectionState, Queue, Topology};
use futures::StreamExt;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long a test waits for something that should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Which broker a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broker {
    Memory,
    RabbitMq,
}

/// The RabbitMQ of the tests.
pub fn amqp_url() -> String {
    std::env::var("ACEMQ_TEST_AMQP")
        .unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".to_owned())
}

/// The management API of that RabbitMQ.
pub fn management_url() -> String {
    std::env::var("ACEMQ_TEST_MANAGEMENT")
        .unwrap_or_else(|_| "http://guest:guest@127.0.0.1:15672".to_owned())
}

/// A name that no other test has, in this run or another.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("t.{}.{number}.{name}", &random[..8])
}

/// A connected handle with the queues that a test made.
pub struct Fixture {
    pub mq: AceMq,
    pub broker: Broker,
    pub url: String,
    queues: Mutex<Vec<String>>,
}

impl Fixture {
    pub async fn on(broker: Broker) -> Self {
        let url = match broker {
            Broker::Memory => format!("memory://{}", unique("broker")),
            Broker::RabbitMq => amqp_url(),
        };
        let mq = Self::connect(&url).await;
        Self { mq, broker, url, queues: Mutex::default() }
    }

    async fn connect(url: &str) -> AceMq {
        let options = AceMq::options(url).shutdown_timeout(Duration::from_secs(5));
        options.connect().await.expect("the broker of the tests is up; see scripts/services.sh")
    }

    /// Another handle on the same broker.
    pub async fn another(&self) -> AceMq {
        Self::connect(&self.url).await
    }

    pub fn options(&self) -> ConnectOptions {
        AceMq::options(&self.url)
    }

    /// A unique queue name that is cleaned up, with what a consumer of it declares.
    pub fn name(&self, name: &str) -> String {
        let queue = unique(name);
        let mut queues = self.queues.lock().unwrap();
        for suffix in ["", ".dlq", ".parked"] {
            queues.push(format!("{queue}{suffix}"));
        }
        queue
    }

    /// Has a queue deleted in the end that somebody else declares.
    pub fn owns(&self, queue: String) {
        self.queues.lock().unwrap().push(queue);
    }

    /// A declared queue of the default kind.
    pub async fn queue(&self, name: &str) -> String {
        let queue = self.name(name);
        self.mq.declare(&Topology::new().queue(Queue::new(queue.as_str()))).await.unwrap();
        queue
    }

    /// Waits until a queue holds this many messages that are ready.
    pub async fn until_length(&self, queue: &str, length: u64) {
        let what = format!("{queue} to hold {length} messages");
        eventually(&what, async || self.mq.queue_length(queue).await.unwrap() == Some(length))
            .await;
    }

    pub async fn clean_up(self) {
        let mut queues = self.queues.into_inner().unwrap();
        // Rungs of the retry ladder, where a test had some.
        queues.extend(queues.clone().iter().map(|queue| format!("{queue}.retry.1s")));
        let _ = self.mq.close().await;
        let mq = Self::connect(&self.url).await;
        for queue in queues {
            let _ = mq.delete_queue(&queue).await;
        }
        let _ = mq.close().await;
    }
}

/// Runs a test on one broker and cleans up after it.
pub async fn run<F>(broker: Broker, case: impl FnOnce(std::sync::Arc<Fixture>) -> F)
where
    F: Future<Output = ()>,
{
    let fixture = std::sync::Arc::new(Fixture::on(broker).await);
    case(std::sync::Arc::clone(&fixture)).await;
    if let Ok(fixture) = std::sync::Arc::try_unwrap(fixture) {
        fixture.clean_up().await;
    }
}

/// Waits until a condition holds, looking every few milliseconds.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut look = interval(Duration::from_millis(5));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !condition().await {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        look.tick().await;
    }
}

/// Waits for a future that should complete at once.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(PATIENCE, future).await;
    answer.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// Waits until both connections are up.
pub async fn until_ready(mq: &AceMq) {
    eventually("the handle to be ready", async || mq.state() == ConnectionState::Ready).await;
}

/// Waits until a loss is known.
pub async fn until_reconnecting(mq: &AceMq) {
    eventually("the handle to notice the loss", async || {
        matches!(mq.state(), ConnectionState::Reconnecting(_))
    })
    .await;
}

/// Follows the states of a handle.
pub fn record_states(mq: &AceMq) -> Arc<Mutex<Vec<ConnectionState>>> {
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let (states, record) = (mq.states(), Arc::clone(&seen));
    tokio::spawn(states.for_each(move |state| {
        record.lock().unwrap().push(state);
        std::future::ready(())
    }));
    seen
}

/// Takes any body as it is.
pub struct AnyBody;

impl acemq::Decoder<bytes::Bytes> for AnyBody {
    fn accepts(&self, _: Option<&str>) -> bool {
        true
    }

    fn decode(&self, body: &bytes::Bytes) -> Result<bytes::Bytes, acemq::BoxError> {
        Ok(body.clone())
    }
}

/// A consumer that acknowledges everything and hands it to the test.
pub struct Inbox {
    pub consumer: acemq::Consumer,
    messages: tokio::sync::mpsc::UnboundedReceiver<acemq::Message<bytes::Bytes>>,
}

impl Inbox {
    pub async fn of(mq: &AceMq, queue: &str) -> Self {
        let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
        let consumer = mq
            .consumer_with::<bytes::Bytes>(queue, AnyBody)
            .start(move |message| {
                let sent = sender.send(message);
                async move { Ok(sent?) }
            })
            .await
            .unwrap();
        Self { consumer, messages }
    }

    pub async fn next(&mut self) -> acemq::Message<bytes::Bytes> {
        soon("a message", self.messages.recv()).await.expect("the consumer runs")
    }
}
