//! Runs from their start to their end.

use std::time::Duration;

use acemq::{
    DurableSaga, OutboxRecord, OutboxStore, ParallelSteps, RetryPolicy, RunStatus, Saga,
    SagaJournal, StepContext, StepError, TraceContext,
};
use futures::{FutureExt, future::join_all};

use super::{
    failing, noting, whoami,
    world::{World, on_every_database},
};

on_every_database!(
    a_run_is_driven_to_its_end_and_remembered,
    the_same_key_starts_once,
    a_caller_that_waits_gets_the_outcome_and_so_does_the_next_one,
    a_run_that_is_started_in_a_transaction_exists_if_that_commits,
    a_failed_run_is_undone_in_reverse,
    a_step_is_tried_again_under_the_same_key,
    steps_side_by_side_each_write_their_part_of_the_state,
    what_a_step_writes_in_its_transaction_is_there_exactly_once,
    a_resumed_step_belongs_to_the_trace_of_its_start,
    sagas_that_share_tables_do_not_see_each_others_runs,
);

fn two_steps<W: World>(world: &W, name: &str) -> DurableSaga<u32, W::Journal> {
    Saga::<u32>::named(name)
        .durable(world.journal())
        .step("a", |n: u32| async move { Ok::<_, StepError>(n + 1) })
        .compensate_with(noting(world))
        .step("b", noting(world))
        .compensate_with(noting(world))
        .build()
        .unwrap()
}

async fn a_run_is_driven_to_its_end_and_remembered<W: World>(world: W) {
    let saga = two_steps(&world, "s");
    let started = saga.start("order-1", &7).await.unwrap();
    assert!(started.is_new);
    let before = saga.status(started.id).await.unwrap().unwrap();
    assert_eq!((before.status(), before.state_json()), (RunStatus::Running, "7"));
    assert!(before.completed().is_empty() && before.ended_at().is_none());

    let report = saga.resume_all().await.unwrap();
    assert_eq!((report.claimed, report.complete), (1, 1));

    let after = saga.status_of("order-1").await.unwrap().unwrap();
    assert_eq!((after.id(), after.key(), after.version()), (started.id, "order-1", 1));
    assert_eq!((after.status(), after.state_json()), (RunStatus::Complete, "8"));
    assert_eq!(after.completed(), ["a", "b"]);
    assert!(after.ended_at().unwrap() >= after.created_at());
    assert_eq!(world.effects().await, ["do b"]);
    assert_eq!(saga.resume_all().await.unwrap().claimed, 0, "an ended run was taken up");
}

async fn the_same_key_starts_once<W: World>(world: W) {
    let saga = two_steps(&world, "s");
    let starts = (0..12).map(|n| {
        let saga = saga.clone();
        async move { saga.start("order-1", &n).await.unwrap() }
    });
    let started = join_all(starts).await;
    assert_eq!(started.iter().filter(|started| started.is_new).count(), 1);
    assert!(started.iter().all(|one| one.id == started[0].id));
    saga.resume_all().await.unwrap();
    assert!(!saga.start("order-1", &0).await.unwrap().is_new, "its end made room for another");
    // Neither letter case nor a space at the end makes two keys one.
    assert!(saga.start("Order-1", &0).await.unwrap().is_new);
    assert!(saga.start("order-1 ", &0).await.unwrap().is_new);
    assert_eq!(world.effects().await, ["do b"]);
}

async fn a_caller_that_waits_gets_the_outcome_and_so_does_the_next_one<W: World>(world: W) {
    let saga = two_steps(&world, "s");
    for _ in 0..2 {
        let outcome = saga.run("order-1", &1).await.unwrap();
        assert!(outcome.is_complete());
        assert_eq!(*outcome.state(), 2);
    }
    assert_eq!(world.effects().await, ["do b"]);
}

async fn a_run_that_is_started_in_a_transaction_exists_if_that_commits<W: World>(world: W) {
    let saga = two_steps(&world, "s");
    let mut tx = world.journal().begin().await.unwrap();
    assert!(saga.start_in(&mut tx, "order-1", &1).await.unwrap().is_new);
    tx.rollback().await.unwrap();
    assert!(saga.status_of("order-1").await.unwrap().is_none());

    let mut tx = world.journal().begin().await.unwrap();
    W::effect_in(&mut tx, world.name(), "order placed").await.unwrap();
    assert!(saga.start_in(&mut tx, "order-1", &1).await.unwrap().is_new);
    assert!(!saga.start_in(&mut tx, "order-1", &1).await.unwrap().is_new);
    tx.commit().await.unwrap();
    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
    assert_eq!(world.effects().await, ["order placed", "do b"]);
}

async fn a_failed_run_is_undone_in_reverse<W: World>(world: W) {
    let saga = Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", noting(&world))
        .compensate_with(noting(&world))
        .step("b", noting(&world))
        .step("c", noting(&world))
        .compensate_with(noting(&world))
        .step("d", failing())
        .compensate_with(noting(&world))
        .step("e", noting(&world))
        .build()
        .unwrap();
    let outcome = saga.run("order-1", &1).await.unwrap();
    assert!(outcome.compensated());
    assert_eq!(outcome.failed_at(), Some("d"));
    assert_eq!(outcome.failure().unwrap().to_string(), "not today");
    assert_eq!(outcome.undone(), ["c", "a"]);
    assert_eq!(outcome.passed_over(), ["b"]);
    assert_eq!(world.effects().await, ["do a", "do b", "do c", "undo c", "undo a"]);
}

async fn a_step_is_tried_again_under_the_same_key<W: World>(world: W) {
    let (inner, after) = (world.clone(), Duration::from_millis(1));
    let saga = Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", move |_: u32| {
            let world = inner.clone();
            async move {
                let step = StepContext::current().unwrap();
                world.effect(&format!("{} {}", step.attempt(), step.idempotency_key())).await?;
                if step.attempt() < 3 { Err(StepError::unknown("no answer")) } else { Ok(()) }
            }
        })
        .retry(RetryPolicy::fixed(3, after))
        .build()
        .unwrap();
    let id = saga.start("order-1", &1).await.unwrap().id;
    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
    let expected: Vec<String> = (1..=3).map(|attempt| format!("{attempt} {id}/a")).collect();
    assert_eq!(world.effects().await, expected);
}

async fn steps_side_by_side_each_write_their_part_of_the_state<W: World>(world: W) {
    let group = ParallelSteps::new()
        .step("hotel", |_: [u32; 3]| async {
            Ok::<_, StepError>(|trip: &mut [u32; 3]| trip[0] = 7)
        })
        .compensate_with(noting(&world))
        .step("flight", |_| async { Ok::<_, StepError>(|trip: &mut [u32; 3]| trip[1] = 8) })
        .compensate_with(noting(&world));
    let saga = Saga::<[u32; 3]>::named("s")
        .durable(world.journal())
        .parallel(group)
        .step("pay", |[hotel, flight, _]: [u32; 3]| async move {
            if hotel == 7 && flight == 8 { Err(StepError::fatal("no money")) } else { Ok(()) }
        })
        .build()
        .unwrap();
    let outcome = saga.run("trip-1", &[0, 0, 9]).await.unwrap();
    assert_eq!(outcome.failed_at(), Some("pay"));
    assert_eq!(*outcome.state(), [7, 8, 9]);
    let mut undone = world.effects().await;
    undone.sort();
    assert_eq!(undone, ["undo flight", "undo hotel"]);
}

async fn what_a_step_writes_in_its_transaction_is_there_exactly_once<W: World>(world: W) {
    let (name, outbox) = (world.name().to_owned(), world.outbox());
    let undo_name = name.clone();
    let saga = Saga::<u32>::named("s")
        .durable(world.journal())
        .step_in_transaction("a", move |n: u32, tx| {
            let (name, outbox) = (name.clone(), outbox.clone());
            async move {
                W::effect_in(tx, &name, &whoami()).await?;
                outbox.add(tx, OutboxRecord::json("", "orders", &n)?).await?;
                let attempt = StepContext::current().unwrap().attempt();
                if attempt == 1 { Err(StepError::unknown("once more")) } else { Ok(n + 1) }
            }
            .boxed()
        })
        .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
        .compensate_in_transaction(move |_, tx| {
            let name = undo_name.clone();
            async move { W::effect_in(tx, &name, &whoami()).await }.boxed()
        })
        .step("b", failing())
        .build()
        .unwrap();
    let outcome = saga.run("order-1", &1).await.unwrap();
    assert!(outcome.compensated());
    assert_eq!(*outcome.state(), 2);
    // The first attempt was rolled back, whatever it said about itself.
    assert_eq!(world.effects().await, ["do a", "undo a"]);
    assert_eq!(world.outbox().pending_count().await.unwrap(), 1);
}

async fn a_resumed_step_belongs_to_the_trace_of_its_start<W: World>(world: W) {
    let inner = world.clone();
    let saga = Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", move |_: u32| {
            let world = inner.clone();
            async move {
                let trace = TraceContext::current().unwrap();
                Ok::<_, StepError>(world.effect(&format!("{trace:?}")).await?)
            }
        })
        .build()
        .unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = TraceContext::parse(parent, Some("shop=42")).unwrap();
    trace.clone().scope(saga.start("order-1", &1)).await.unwrap();
    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
    assert_eq!(world.effects().await, [format!("{trace:?}")]);
}

async fn sagas_that_share_tables_do_not_see_each_others_runs<W: World>(world: W) {
    let (one, other) = (two_steps(&world, "one"), two_steps(&world, "other"));
    let id = one.start("order-1", &1).await.unwrap().id;
    assert!(other.start("order-1", &1).await.unwrap().is_new);
    assert!(other.status(id).await.unwrap().is_none());
    assert_eq!(other.resume_all().await.unwrap().claimed, 1);
    assert_eq!(one.status(id).await.unwrap().unwrap().status(), RunStatus::Running);
}
