//! Routing slips, every case on both brokers.

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

mod forwarding;
mod undoing;

use acemq::{Envelope, Itinerary};
use support::Fixture;

/// Publishes to the first stop of a route.
pub async fn submit(fx: &Fixture, route: &Itinerary, payload: u64, envelope: Envelope) -> String {
    let first = route.next().expect("a route has a stop");
    let publisher = fx.mq.publisher::<u64>(first.exchange(), first.routing_key());
    let envelope = envelope.header(Itinerary::HEADER, route.to_header());
    publisher.send_with(&payload, envelope).await.unwrap()
}
