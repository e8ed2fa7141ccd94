//! Ordered queues, every case on both brokers.

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

mod failing;
mod keeping;
mod processes;

use std::sync::Arc;

use acemq::{AceMq, OrderedBuilder};
use serde::{Deserialize, Serialize};
use support::Fixture;

/// A message of one key, with its place in the key's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub key: String,
    pub number: u64,
}

pub fn event(key: impl Into<String>, number: u64) -> Event {
    Event { key: key.into(), number }
}

pub const PARTITIONS: u32 = 4;

/// The name of a queue whose queues are deleted with the fixture.
pub fn name(fx: &Arc<Fixture>) -> String {
    let name = fx.name("ordered");
    fx.owns(format!("{name}.partitions"));
    for partition in 0..16 {
        for suffix in ["", ".dlq", ".parked"] {
            fx.owns(format!("{name}.p{partition}{suffix}"));
        }
    }
    name
}

pub fn ordered(mq: &AceMq, name: &str) -> OrderedBuilder<Event> {
    mq.ordered::<Event>(name).partitions(PARTITIONS).keyed_by(|event: &Event| event.key.clone())
}
