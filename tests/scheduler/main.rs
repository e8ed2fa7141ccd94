//! Scheduling, every case on both brokers and, where hours pass, on paused time.

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

mod delivering;
mod hostile;
mod paused;
mod surviving;

use std::collections::HashMap;

use acemq::{AceMq, Consumer, Message};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use support::{AnyBody, Fixture};
use tokio::sync::mpsc;

/// What arrived, and when.
pub struct Arrivals {
    pub consumer: Consumer,
    messages: mpsc::UnboundedReceiver<(DateTime<Utc>, Message<Bytes>)>,
}

impl Arrivals {
    pub async fn at(mq: &AceMq, queue: &str) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let consumer = mq
            .consumer_with::<Bytes>(queue, AnyBody)
            .prefetch(500)
            .start(move |message| {
                let sent = sender.send((Utc::now(), message));
                async move { Ok(sent?) }
            })
            .await
            .unwrap();
        Self { consumer, messages }
    }

    pub async fn next(&mut self) -> (DateTime<Utc>, Message<Bytes>) {
        support::soon("a message", self.messages.recv()).await.expect("the consumer runs")
    }

    /// The bodies of this many messages, with how often each came.
    pub async fn bodies(&mut self, count: usize) -> HashMap<String, usize> {
        let mut bodies = HashMap::new();
        while bodies.len() < count {
            let (_, message) = self.next().await;
            let body = String::from_utf8(message.body().to_vec()).unwrap();
            *bodies.entry(body).or_default() += 1;
        }
        bodies
    }
}

/// A ladder of the test's own, which is deleted with its fixture.
pub fn prefix(fixture: &Fixture) -> String {
    let prefix = fixture.name("schedule");
    for queue in ["due", "due.dlq", "due.parked", "1h", "10m", "1m", "10s", "1s"] {
        fixture.owns(format!("{prefix}.{queue}"));
    }
    prefix
}
