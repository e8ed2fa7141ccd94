//! One suite for both transports: where they differ, the memory broker is wrong.

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

mod consuming;
mod exchanges;
mod failing;
mod health;
mod limiting;
mod planning;
mod publishing;
mod replaying;
mod routing;
