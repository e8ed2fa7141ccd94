//! The broker's rules, one file per idea.

mod any_message;
mod consuming;
mod dead_lettering;
mod declaring;
mod expiring;
mod limits;
mod links;
mod publishing;
mod settling;
mod topic_patterns;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;

use super::{MemoryBroker, MemoryTransport};
use crate::{
    error::Result,
    message::{HeaderValue, Headers, Properties},
    topology::{Queue, Topology},
    transport::{Delivery, Link, Outgoing, Subscribe, Subscription, Transport},
};

/// A broker of one's own with one link.
struct Fixture {
    transport: MemoryTransport,
    broker: MemoryBroker,
    link: Arc<dyn Link>,
}

impl Fixture {
    async fn new() -> Self {
        let transport = MemoryTransport::private();
        let broker = transport.broker();
        let link = transport.dial("test").await.unwrap();
        Self { transport, broker, link }
    }

    async fn with_queue(queue: Queue) -> Self {
        let fixture = Self::new().await;
        fixture.declare(queue).await;
        fixture
    }

    async fn dial(&self) -> Arc<dyn Link> {
        self.transport.dial("another").await.unwrap()
    }

    async fn declare(&self, queue: Queue) {
        self.try_declare(queue).await.unwrap();
    }

    async fn try_declare(&self, queue: Queue) -> Result<()> {
        self.link.declare(&bare(queue)).await
    }

    async fn send(&self, queue: &str, bodies: &[&str]) {
        for body in bodies {
            self.link.publish(message(queue, body)).await.unwrap();
        }
    }

    /// The bodies of the ready messages of a queue.
    fn ready(&self, queue: &str) -> Vec<String> {
        self.broker.messages(queue).iter().map(|(_, _, body)| text(body)).collect()
    }

    /// Takes the next message of a queue on a channel that stays open with it.
    async fn take(&self, queue: &str) -> (Delivery, Box<dyn crate::transport::Pull>) {
        let mut pull = self.link.pull(queue).await.unwrap();
        (pull.next().await.unwrap().expect("a message"), pull)
    }
}

/// A topology of one queue, without the dead-letter queue that `Topology::queue` may add.
fn bare(queue: Queue) -> Topology {
    Topology { queues: vec![queue], ..Topology::default() }
}

/// A mandatory message to a queue through the default exchange.
fn message(queue: &str, body: &str) -> Outgoing {
    to("", queue, body)
}

fn to(exchange: &str, routing_key: &str, body: &str) -> Outgoing {
    Outgoing {
        exchange: exchange.to_owned(),
        routing_key: routing_key.to_owned(),
        mandatory: true,
        properties: Properties {
            message_id: Some(body.to_owned()),
            persistent: true,
            ..Properties::default()
        },
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

fn expiring(queue: &str, body: &str, expiration: &str) -> Outgoing {
    let mut message = message(queue, body);
    message.properties.expiration = Some(expiration.to_owned());
    message
}

fn subscribe(queue: &str, prefetch: u16) -> Subscribe {
    Subscribe {
        queue: queue.to_owned(),
        tag: "test".to_owned(),
        prefetch,
        exclusive: false,
        arguments: Headers::new(),
    }
}

async fn consume(link: &Arc<dyn Link>, queue: &str, prefetch: u16) -> Subscription {
    link.subscribe(subscribe(queue, prefetch)).await.unwrap()
}

/// The deliveries that are in a stream now.
fn sent(subscription: &mut Subscription) -> Vec<Delivery> {
    let mut all = Vec::new();
    while let Some(Some(delivery)) =
        futures::FutureExt::now_or_never(subscription.deliveries.next())
    {
        all.push(delivery.unwrap());
    }
    all
}

/// Bodies in order, `r` behind a redelivered one.
fn bodies(deliveries: &[Delivery]) -> String {
    let body = |d: &Delivery| format!("{}{}", text(&d.body), if d.redelivered { "r" } else { "" });
    deliveries.iter().map(body).collect::<Vec<_>>().join(" ")
}

fn text(body: &Bytes) -> String {
    String::from_utf8_lossy(body).into_owned()
}

/// The entries of `x-death`, as `queue reason count`.
fn deaths(properties: &Properties) -> Vec<String> {
    let Some(HeaderValue::List(deaths)) = properties.headers.get("x-death") else {
        return Vec::new();
    };
    let entry = |death: &HeaderValue| {
        let HeaderValue::Table(death) = death else { panic!("not a table: {death:?}") };
        let count = death.get("count").and_then(HeaderValue::as_i64).unwrap();
        format!("{} {} {count}", death.text("queue").unwrap(), death.text("reason").unwrap())
    };
    deaths.iter().map(entry).collect()
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
