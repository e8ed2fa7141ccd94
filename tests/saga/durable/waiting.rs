//! Steps that wait, for a time or for an answer, and hold no task meanwhile.

use std::time::Duration;

use acemq::{
    AceMq, DurableSaga, Message, OutboxRecord, OutboxRelay, OutboxStore, Queue, ResultExt,
    RetryPolicy, RunStatus, Saga, SagaFailure, SagaJournal, StepContext, StepError, Topology,
};
use chrono::{DateTime, Utc};
use futures::FutureExt;
use uuid::Uuid;

use super::{
    noting,
    world::{World, on_every_database},
};
use crate::support::eventually;

on_every_database!(
    a_run_waits_for_its_time_and_for_no_less,
    a_time_that_the_state_says_is_waited_for,
    an_answer_ends_a_wait_and_only_the_first_one_counts,
    an_answer_that_comes_early_is_kept,
    no_answer_in_time_is_a_failure_with_an_unknown_outcome,
    an_answer_that_is_refused_fails_the_step,
    an_answer_counts_if_its_transaction_commits,
    a_distant_retry_holds_no_task,
    a_step_is_a_request_to_a_participant_by_queues,
);

const HOUR: Duration = Duration::from_secs(3600);

async fn status<W: World>(saga: &DurableSaga<u32, W::Journal>, id: Uuid) -> RunStatus {
    saga.status(id).await.unwrap().unwrap().status()
}

async fn a_run_waits_for_its_time_and_for_no_less<W: World>(world: W) {
    let saga = Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", noting(&world))
        .wait("cool down", HOUR)
        .step("b", noting(&world))
        .build()
        .unwrap();
    let id = saga.start("order-1", &1).await.unwrap().id;
    let report = saga.resume_all().await.unwrap();
    assert_eq!((report.claimed, report.waiting), (1, 1));
    let run = saga.status(id).await.unwrap().unwrap();
    let until = run.waits_until().unwrap();
    let left = until - run.created_at();
    assert!((3600..3700).contains(&left.num_seconds()), "{left}");
    assert_eq!(saga.resume_all().await.unwrap().claimed, 0);

    // Whoever comes early, say because its clock was put back, waits until the same moment.
    world.make_due().await;
    assert_eq!(saga.resume_all().await.unwrap().waiting, 1);
    assert_eq!(saga.status(id).await.unwrap().unwrap().waits_until(), Some(until));
    assert_eq!(world.effects().await, ["do a"]);

    world.execute("UPDATE {p}saga SET waits_until = 1").await;
    world.make_due().await;
    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
    assert_eq!(world.effects().await, ["do a", "do b"]);
    assert_eq!(saga.status(id).await.unwrap().unwrap().waits_until(), None);
}

async fn a_time_that_the_state_says_is_waited_for<W: World>(world: W) {
    let saga = Saga::<DateTime<Utc>>::named("s")
        .durable(world.journal())
        .wait_until("departure", |departs: &DateTime<Utc>| *departs)
        .step("b", noting(&world))
        .build()
        .unwrap();
    let departs = DateTime::from_timestamp_millis(4_102_444_800_123).unwrap();
    let id = saga.start("trip-1", &departs).await.unwrap().id;
    assert_eq!(saga.resume_all().await.unwrap().waiting, 1);
    assert_eq!(saga.status(id).await.unwrap().unwrap().waits_until(), Some(departs));

    saga.start("trip-0", &DateTime::UNIX_EPOCH).await.unwrap();
    assert_eq!(saga.resume_all().await.unwrap().complete, 1, "the past was waited for");
}

/// Waits for an answer, which it adds to the state.
fn asking<W: World>(world: &W) -> DurableSaga<u32, W::Journal> {
    Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", noting(world))
        .compensate_with(noting(world))
        .wait_for("approval", HOUR, |state: u32, answer: u32| {
            if answer == 0 { Err(StepError::not_done("declined")) } else { Ok(state + answer) }
        })
        .compensate_with(noting(world))
        .step("b", noting(world))
        .build()
        .unwrap()
}

async fn an_answer_ends_a_wait_and_only_the_first_one_counts<W: World>(world: W) {
    let saga = asking(&world);
    let id = saga.start("order-1", &1).await.unwrap().id;
    assert_eq!(saga.resume_all().await.unwrap().waiting, 1);
    assert_eq!(saga.status(id).await.unwrap().unwrap().waits_for(), Some("approval"));

    assert!(saga.signal(id, "approval", &41).await.unwrap());
    assert!(!saga.signal(id, "approval", &99).await.unwrap(), "a second answer was taken");
    assert!(!saga.signal(Uuid::new_v4(), "approval", &1).await.unwrap());
    assert!(saga.signal(id, "approval", "no number").await.is_err());

    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
    assert_eq!(*saga.outcome(id).await.unwrap().state(), 42);
    assert!(!saga.signal(id, "approval", &99).await.unwrap(), "an ended run took an answer");
    assert_eq!(world.effects().await, ["do a", "do b"]);
}

async fn an_answer_that_comes_early_is_kept<W: World>(world: W) {
    let saga = asking(&world);
    let id = saga.start("order-1", &1).await.unwrap().id;
    assert!(saga.signal(id, "approval", &41).await.unwrap());
    let report = saga.resume_all().await.unwrap();
    assert_eq!((report.complete, report.waiting), (1, 0));
    assert_eq!(*saga.outcome(id).await.unwrap().state(), 42);
}

async fn no_answer_in_time_is_a_failure_with_an_unknown_outcome<W: World>(world: W) {
    let saga = asking(&world);
    let id = saga.start("order-1", &1).await.unwrap().id;
    assert_eq!(saga.resume_all().await.unwrap().waiting, 1);
    world.execute("UPDATE {p}saga SET waits_until = 1").await;
    world.make_due().await;
    assert_eq!(saga.resume_all().await.unwrap().compensated, 1);
    let outcome = saga.outcome(id).await.unwrap();
    assert_eq!(outcome.failed_at(), Some("approval"));
    assert!(matches!(outcome.failure(), Some(SagaFailure::TimedOut { after: HOUR })));
    // Whoever was asked may have done it.
    assert_eq!(world.effects().await, ["do a", "undo approval", "undo a"]);
}

async fn an_answer_that_is_refused_fails_the_step<W: World>(world: W) {
    let saga = asking(&world);
    let id = saga.start("order-1", &1).await.unwrap().id;
    assert!(saga.signal(id, "approval", &0).await.unwrap());
    assert_eq!(saga.resume_all().await.unwrap().compensated, 1);
    assert_eq!(saga.outcome(id).await.unwrap().failure().unwrap().to_string(), "declined");
    assert_eq!(world.effects().await, ["do a", "undo a"]);
}

async fn an_answer_counts_if_its_transaction_commits<W: World>(world: W) {
    let saga = asking(&world);
    let id = saga.start("order-1", &1).await.unwrap().id;
    assert_eq!(saga.resume_all().await.unwrap().waiting, 1);

    let mut tx = world.journal().begin().await.unwrap();
    assert!(saga.signal_in(&mut tx, id, "approval", &41).await.unwrap());
    tx.rollback().await.unwrap();
    assert_eq!(saga.resume_all().await.unwrap().claimed, 0);

    let mut tx = world.journal().begin().await.unwrap();
    assert!(saga.signal_in(&mut tx, id, "approval", &9).await.unwrap());
    assert!(!saga.signal_in(&mut tx, id, "approval", &10).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
    assert_eq!(*saga.outcome(id).await.unwrap().state(), 10);
}

async fn a_distant_retry_holds_no_task<W: World>(world: W) {
    let saga = Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", |_: u32| async {
            let attempt = StepContext::current().unwrap().attempt();
            if attempt < 3 { Err(StepError::not_done("closed")) } else { Ok(()) }
        })
        .retry(RetryPolicy::fixed(3, HOUR))
        .build()
        .unwrap();
    let id = saga.start("order-1", &1).await.unwrap().id;
    for _ in 0..2 {
        let report = saga.resume_all().await.unwrap();
        assert_eq!((report.claimed, report.waiting), (1, 1));
        assert_eq!(saga.resume_all().await.unwrap().claimed, 0);
        assert!(saga.status(id).await.unwrap().unwrap().waits_until().is_some());
        world.make_due().await;
    }
    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
}

/// The request leaves by the outbox, with the commit of its step; the answer is a message whose
/// consumer signals the run. Neither the saga's process nor the participant waits for the other.
async fn a_step_is_a_request_to_a_participant_by_queues<W: World>(world: W) {
    let mq = AceMq::connect(&format!("memory://{}", world.name())).await.unwrap();
    let [requests, answers] = ["stock.reserve", "shop.reserved"].map(Queue::new);
    mq.declare(&Topology::new().queue(requests).queue(answers)).await.unwrap();

    let outbox = world.outbox();
    let saga = Saga::<u32>::named("fulfil-order")
        .durable(world.journal())
        .step_in_transaction("ask-stock", move |order: u32, tx| {
            let outbox = outbox.clone();
            async move {
                let run = StepContext::current().expect("a step runs").run();
                outbox
                    .add(tx, OutboxRecord::json("", "stock.reserve", &(run.to_string(), order))?)
                    .await?;
                Ok::<_, StepError>(order)
            }
            .boxed()
        })
        .wait_for("stock-reserved", HOUR, |order: u32, shelf: u32| {
            Ok::<_, StepError>(order * 1000 + shelf)
        })
        .build()
        .unwrap();

    let relay =
        OutboxRelay::new(&mq, world.outbox()).poll_interval(Duration::from_millis(20)).start();
    let answers = mq.publisher::<(String, u32)>("", "shop.reserved");
    let participant = mq
        .consumer::<(String, u32)>("stock.reserve")
        .start(move |request: Message<(String, u32)>| {
            let answers = answers.clone();
            async move {
                let (run, order) = request.payload();
                answers.send(&(run.clone(), order + 5)).await?;
                Ok(())
            }
        })
        .await
        .unwrap();
    let signalled = saga.clone();
    let listener = mq
        .consumer::<(String, u32)>("shop.reserved")
        .start(move |answer: Message<(String, u32)>| {
            let saga = signalled.clone();
            async move {
                let (run, shelf) = answer.payload();
                saga.signal(run.parse().reject()?, "stock-reserved", shelf).await?;
                Ok(())
            }
        })
        .await
        .unwrap();
    let worker = saga.worker().poll_interval(Duration::from_millis(20)).start().unwrap();

    let id = saga.start("order-7", &7).await.unwrap().id;
    eventually("the run to end", async || status::<W>(&saga, id).await == RunStatus::Complete)
        .await;
    assert_eq!(*saga.outcome(id).await.unwrap().state(), 7012);

    worker.close().await;
    relay.close().await;
    participant.close().await;
    listener.close().await;
    mq.close().await;
}
