//! Request and reply, every case on both brokers.

#[path = "../support/mod.rs"]
mod support;

/// Makes each case a test on `memory://` and a test on RabbitMQ.
macro_rules! on_both_brokers {
    ($($(#[$meta:meta])* async fn $name:ident($fixture:ident) $body:block)*) => {
        mod cases {
            use super::*;
            $(
                $(#[$meta])*
                pub(super) async fn $name($fixture: std::sync::Arc<crate::support::Fixture>) $body
            )*
        }

        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::support::run(crate::support::Broker::Memory, super::cases::$name).await;
                }
            )*
        }

        mod rabbitmq {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::support::run(crate::support::Broker::RabbitMq, super::cases::$name).await;
                }
            )*
        }
    };
}

mod asking;
mod failing;
mod hostile;
mod killed;
mod losing;
mod storm;

use std::{convert::Infallible, sync::Arc, time::Duration};

use acemq::{AceMq, RequestError, Requester, Responder, testing::MemoryBroker};
use support::{Broker, Fixture, amqp_url, eventually, proxy::Proxy, soon};
use tokio::sync::{Semaphore, mpsc};

/// A timeout that no test should see the end of.
pub const LONG: Duration = Duration::from_secs(20);

/// A timeout that a test waits for.
pub const SHORT: Duration = Duration::from_millis(150);

/// The answer to a question, for right and wrong to show.
pub fn answer_to(question: u64) -> u64 {
    question.wrapping_mul(0x9e37_79b9) ^ 0xacec
}

pub async fn responder(mq: &AceMq, queue: &str) -> Responder {
    let handler = |question: u64| async move { Ok::<_, Infallible>(answer_to(question)) };
    mq.respond(queue, handler).await.unwrap()
}

pub async fn ask(requester: &Requester, queue: &str, question: u64) -> Result<u64, RequestError> {
    soon("an answer", requester.request("", queue, &question, LONG)).await
}

/// Asks a responder at a gate, and opens it once.
pub async fn ask_with_gate(
    requester: &Requester,
    queue: &str,
    gate: &Semaphore,
    question: u64,
) -> u64 {
    gate.add_permits(1);
    ask(requester, queue, question).await.unwrap()
}

/// Waits until no call has an entry any more.
pub async fn until_empty(requester: &Requester) {
    eventually("no call to be in flight", async || requester.stats().in_flight == 0).await;
}

/// A responder whose handlers wait at a gate, and tell when they have come to it.
pub struct Gated {
    pub responder: Responder,
    pub gate: Arc<Semaphore>,
    arrived: mpsc::UnboundedReceiver<u64>,
}

impl Gated {
    pub async fn on(mq: &AceMq, queue: &str) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let (arrive, arrived) = mpsc::unbounded_channel();
        let handler = {
            let gate = Arc::clone(&gate);
            move |question: u64| {
                let gate = Arc::clone(&gate);
                let _ = arrive.send(question);
                async move {
                    gate.acquire().await?.forget();
                    Ok::<_, tokio::sync::AcquireError>(answer_to(question))
                }
            }
        };
        let responder = mq.responder(queue).concurrency(50).start(handler).await.unwrap();
        Self { responder, gate, arrived }
    }

    pub async fn arrival(&mut self) -> u64 {
        soon("a request", self.arrived.recv()).await.unwrap()
    }

    /// Forgets the arrivals that the test has not looked at.
    pub fn drain(&mut self) {
        while self.arrived.try_recv().is_ok() {}
    }
}

/// A handle whose connections the test can cut.
pub struct Line {
    pub mq: AceMq,
    cutter: Cutter,
}

enum Cutter {
    Memory(MemoryBroker),
    RabbitMq(Proxy),
}

impl Line {
    pub async fn to(fx: &Fixture) -> Self {
        let (url, cutter) = match fx.broker {
            Broker::Memory => (fx.url.clone(), Cutter::Memory(MemoryBroker::of(&fx.url))),
            Broker::RabbitMq => {
                let address = address_of_the_broker();
                let proxy = Proxy::to(&address).await;
                let url = amqp_url().replace(&address, &format!("127.0.0.1:{}", proxy.port()));
                (url, Cutter::RabbitMq(proxy))
            }
        };
        // Cut again and again, it must not wait longer and longer.
        let options = AceMq::options(url)
            .reconnect_cap(Duration::from_millis(200))
            .shutdown_timeout(Duration::from_secs(5));
        Self { mq: options.connect().await.unwrap(), cutter }
    }

    pub fn cut(&self) {
        match &self.cutter {
            Cutter::Memory(broker) => broker.disconnect_all("a cable was pulled"),
            Cutter::RabbitMq(proxy) => proxy.cut(),
        }
    }
}

/// Host and port of the broker.
fn address_of_the_broker() -> String {
    let url = amqp_url();
    let rest = url.split_once("://").expect("a URL").1;
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split('/').next().expect("an address").to_owned()
}
