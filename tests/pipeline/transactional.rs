//! A step whose work, whose note of the message and whose next message commit together.

use std::sync::Arc;

use acemq::{
    AceMq, Envelope, HandlerError, Itinerary, OutboxRelay, Pipeline, RetryPolicy, Work,
    consume::Consumer,
};
use std::time::Duration;

use crate::{
    STEPS, Told,
    bank::{Bank, Lite, Pg, unique},
    built,
    chaos::cuttable,
    name, next,
    support::{Broker, Fixture, eventually, run},
    three,
};

/// The pipeline without its step in the middle, and the end of its runs.
async fn around_the_step(fx: &Fixture, mq: &AceMq) -> (Pipeline<u64>, Told) {
    let name = name(fx, &STEPS);
    let (builder, told) = three(mq, &name);
    (built(builder.only(["double", "tell"])).await, told)
}

/// The step in the middle, which notes its work, fails after that now and then, and sends on.
async fn adding<B: Bank>(mq: &AceMq, pipeline: &Pipeline<u64>, bank: &B, fails: u8) -> Consumer {
    let (pipeline, bank) = (pipeline.clone(), bank.clone());
    mq.consumer::<u64>(pipeline.queue_for("add").unwrap())
        .retry(RetryPolicy::fixed(40, Duration::from_millis(5)))
        .transactional(bank.store())
        .start(move |mut work: Work<u64, B::D>| {
            let (pipeline, bank) = (pipeline.clone(), bank.clone());
            async move {
                let (id, sum) = (work.message().id().to_owned(), work.payload() + 1);
                B::effect(work.tx(), bank.name(), &id).await?;
                if let Some(hop) = pipeline.next_hop("add", work.envelope(), &sum)? {
                    bank.record(work.tx(), hop.into()).await?;
                }
                if fastrand::u8(..100) < fails {
                    return Err(HandlerError::retry("after everything was written"));
                }
                Ok(work.commit().await?)
            }
        })
        .await
        .unwrap()
}

async fn work_and_next_message_commit_together<B: Bank>(fx: Arc<Fixture>, bank: B) {
    const RUNS: u64 = 30;
    let (pipeline, mut told) = around_the_step(&fx, &fx.mq).await;
    let step = adding(&fx.mq, &pipeline, &bank, 30).await;
    let relay = OutboxRelay::new(&fx.mq, bank.outbox()).start();
    // Each run twice: the hop of a repeated message has the same id, and its work is done once.
    for number in 0..RUNS {
        let envelope = Envelope::of("order").with_id(format!("{}{number}", bank.name()));
        for _ in 0..2 {
            pipeline.send_with(&(2 * number), envelope.clone()).await.unwrap();
        }
    }
    let mut results = Vec::new();
    while results.len() < RUNS as usize {
        let (result, message) = next(&mut told).await;
        assert_eq!(message.envelope().route().unwrap().current(), Some("tell"));
        assert_eq!(message.envelope().message_type(), "order");
        results.push(result);
    }
    results.sort_unstable();
    assert_eq!(results, (0..RUNS).map(|number| 4 * number + 1).collect::<Vec<_>>());
    eventually("every repetition to be recognised", async || {
        let stats = step.stats();
        (stats.acked, stats.duplicates) == (RUNS, RUNS)
    })
    .await;
    assert_eq!(bank.effects().await, (RUNS as i64, RUNS as i64));
    assert!(told.try_recv().is_err());
    relay.close().await;
    step.close().await;
}

async fn a_slip_that_leads_nowhere_rolls_the_work_back<B: Bank>(fx: Arc<Fixture>, bank: B) {
    let (pipeline, _told) = around_the_step(&fx, &fx.mq).await;
    let step = adding(&fx.mq, &pipeline, &bank, 0).await;
    let direct = fx.mq.publisher::<u64>("", pipeline.queue_for("add").unwrap());
    let malformed = Envelope::new().header(Itinerary::HEADER, "{");
    direct.send_with(&1, malformed).await.unwrap();
    fx.until_length(&format!("{}.dlq", pipeline.queue_for("add").unwrap()), 1).await;
    assert_eq!((step.stats().retried, bank.effects().await), (0, (0, 0)));
    // The end of a run sends nothing on.
    let message = Envelope::new();
    assert!(pipeline.next_hop("tell", &message, &1).unwrap().is_none());
    assert!(pipeline.next_hop("nowhere", &message, &1).is_err());
    step.close().await;
}

async fn work_is_done_once_over_lost_connections<B: Bank>(fx: Arc<Fixture>, bank: B) {
    const RUNS: u64 = 60;
    let (mq, cut) = cuttable(&fx).await;
    let (pipeline, mut told) = around_the_step(&fx, &fx.mq).await;
    let step = adding(&mq, &pipeline, &bank, 10).await;
    let relay = OutboxRelay::new(&mq, bank.outbox()).start();
    for number in 0..RUNS {
        while let Err(error) = pipeline.send(&(2 * number)).await {
            assert!(error.may_have_been_published() || fx.broker == Broker::Memory, "{error:?}");
        }
        if number % 15 == 7 {
            cut();
        }
    }
    let mut results = std::collections::BTreeSet::new();
    while results.len() < RUNS as usize {
        results.insert(next(&mut told).await.0);
    }
    let (effects, messages) = bank.effects().await;
    assert_eq!(effects, messages, "no message had its effect twice");
    assert!(effects >= RUNS as i64);
    relay.close().await;
    step.close().await;
    mq.close().await;
}

/// Each case on both databases and on both brokers.
macro_rules! on_databases {
    ($($case:ident),*) => {
        on_databases!(postgres Pg: $($case),*);
        on_databases!(sqlite Lite: $($case),*);
    };
    ($database:ident $bank:ident: $($case:ident),*) => {
        mod $database {
            use super::*;

            async fn with<F: Future<Output = ()>>(
                broker: Broker,
                case: impl FnOnce(Arc<Fixture>, $bank) -> F,
            ) {
                let bank = $bank::open(&unique()).await;
                bank.create().await;
                run(broker, |fx| case(fx, bank.clone())).await;
                bank.drop().await;
            }

            mod memory {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        super::with(super::Broker::Memory, super::super::$case).await;
                    }
                )*
            }

            mod rabbitmq {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        super::with(super::Broker::RabbitMq, super::super::$case).await;
                    }
                )*
            }
        }
    };
}

on_databases!(
    work_and_next_message_commit_together,
    a_slip_that_leads_nowhere_rolls_the_work_back,
    work_is_done_once_over_lost_connections
);
