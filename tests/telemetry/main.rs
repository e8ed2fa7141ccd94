//! What can be seen from outside: metrics, trace context and spans, every case on both brokers.

#[path = "../support/mod.rs"]
mod support;

/// Makes each case a test on `memory://` and a test on RabbitMQ, on one thread each, since
/// recorders and subscribers are set for a thread.
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
                #[tokio::test]
                async fn $name() {
                    crate::support::run(crate::support::Broker::Memory, super::cases::$name).await;
                }
            )*
        }

        mod rabbitmq {
            $(
                #[tokio::test]
                async fn $name() {
                    crate::support::run(crate::support::Broker::RabbitMq, super::cases::$name).await;
                }
            )*
        }
    };
}

mod context;
mod counting;

#[cfg(feature = "opentelemetry")]
mod spans;
