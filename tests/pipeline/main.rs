//! Pipelines, every case on both brokers.

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

#[path = "../inbox/bank.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // of which these tests use a part
mod bank;
mod chaos;
mod ends;
mod running;
mod slips;
mod transactional;

use acemq::{HandlerError, Message, Pipeline, PipelineBuilder, RetryPolicy};
use std::time::Duration;
use support::Fixture;
use tokio::sync::mpsc;

/// A pipeline's name, whose queues are deleted with the fixture.
pub fn name(fx: &Fixture, steps: &[&str]) -> String {
    let name = fx.name("pipe");
    for step in steps {
        for suffix in ["", ".dlq", ".parked"] {
            fx.owns(format!("{name}.{step}{suffix}"));
        }
    }
    name
}

/// The numbers at the end of runs, with the messages that had them.
pub type Told = mpsc::UnboundedReceiver<(u64, Message<u64>)>;

/// Three steps: `double` ends odd runs early and rejects 13, `add` adds one, `tell` tells the end.
pub fn three(mq: &acemq::AceMq, name: &str) -> (PipelineBuilder<u64, ()>, Told) {
    let (tell, told) = mpsc::unbounded_channel();
    let builder = mq
        .pipeline::<u64>(name)
        .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
        .step("double", |n: Message<u64>| async move {
            match *n.payload() {
                13 => Err(HandlerError::reject("unlucky")),
                n if n % 2 == 1 => Ok(None),
                n => Ok(Some(2 * n)),
            }
        })
        .step("add", |n: Message<u64>| async move { Ok(Some(n.payload() + 1)) })
        .step("tell", move |n: Message<u64>| {
            let tell = tell.clone();
            async move {
                tell.send((*n.payload(), n)).map_err(HandlerError::retry)?;
                Ok(None)
            }
        });
    (builder, told)
}

pub const STEPS: [&str; 3] = ["double", "add", "tell"];

/// Waits for the end of a run.
pub async fn next(told: &mut Told) -> (u64, Message<u64>) {
    support::soon("the end of a run", told.recv()).await.expect("the pipeline runs")
}

pub async fn built<In: 'static, Out, C>(builder: PipelineBuilder<In, Out, C>) -> Pipeline<In> {
    builder.build().await.unwrap()
}
