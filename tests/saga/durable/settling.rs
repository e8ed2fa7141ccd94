//! Runs that somebody has to look at: unresolved ones, and those of other definitions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use acemq::{DurableSaga, RetryPolicy, RunStatus, Saga, StepError};

use super::{
    failing, noting, whoami,
    world::{World, on_every_database},
};
use crate::support::eventually;

on_every_database!(
    an_unresolved_run_is_listed_until_it_is_resolved,
    a_compensation_that_failed_is_tried_again_and_no_other,
    a_run_of_another_version_is_left_alone,
    a_run_that_a_changed_definition_cannot_go_on_with_is_given_back_with_the_reason,
    ended_runs_are_purged_and_unresolved_ones_are_kept,
);

/// A saga that fails at its fourth step, and whose second cannot be undone until it is mended.
fn torn<W: World>(world: &W, mended: &Arc<AtomicBool>) -> DurableSaga<u32, W::Journal> {
    let (inner, mended) = (world.clone(), Arc::clone(mended));
    Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", noting(world))
        .compensate_with(noting(world))
        .step("b", noting(world))
        .compensate_with(move |_: u32| {
            let (world, mended) = (inner.clone(), mended.load(Ordering::SeqCst));
            async move {
                world.effect(&format!("{} {mended}", whoami())).await?;
                if mended { Ok(()) } else { Err(StepError::not_done("refused")) }
            }
        })
        .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
        .step("c", noting(world))
        .compensate_with(noting(world))
        .step("d", failing())
        .build()
        .unwrap()
}

const TORN: [&str; 7] =
    ["do a", "do b", "do c", "undo c", "undo b false", "undo b false", "undo a"];

async fn an_unresolved_run_is_listed_until_it_is_resolved<W: World>(world: W) {
    let saga = torn(&world, &Arc::default());
    assert_eq!(saga.unresolved_count().await.unwrap(), 0);
    let outcome = saga.run("order-1", &1).await.unwrap();
    assert!(outcome.has_unresolved() && !outcome.compensated());
    assert_eq!(world.effects().await, TORN);
    let id = saga.status_of("order-1").await.unwrap().unwrap().id();

    assert_eq!(saga.unresolved_count().await.unwrap(), 1);
    let told = acemq::HealthSource::health(&saga).await;
    assert_eq!((told.status, told.name.as_str()), (acemq::HealthStatus::Degraded, "s"));
    assert_eq!(told.details["unresolved"], 1);
    let listed = saga.unresolved(10).await.unwrap();
    assert_eq!((listed.len(), listed[0].id()), (1, id));
    assert_eq!(listed[0].unresolved()[0].step, "b");
    assert_eq!(listed[0].unresolved()[0].error.to_string(), "refused");
    assert_eq!(listed[0].undone(), ["c", "a"]);
    assert_eq!(saga.resume_all().await.unwrap().claimed, 0, "it was taken up by itself");

    assert!(saga.resolve(id, "refunded by hand, ticket 7").await.unwrap());
    assert!(!saga.resolve(id, "again").await.unwrap());
    assert!(!saga.retry_compensation(id).await.unwrap());
    let run = saga.status(id).await.unwrap().unwrap();
    assert_eq!(
        (run.status(), run.note()),
        (RunStatus::Resolved, Some("refunded by hand, ticket 7"))
    );
    assert_eq!(saga.unresolved_count().await.unwrap(), 0);
    assert!(saga.unresolved(10).await.unwrap().is_empty());
}

async fn a_compensation_that_failed_is_tried_again_and_no_other<W: World>(world: W) {
    let mended = Arc::<AtomicBool>::default();
    let saga = torn(&world, &mended);
    let id = saga.start("order-1", &1).await.unwrap().id;
    assert_eq!(saga.resume_all().await.unwrap().unresolved, 1);

    // In vain at first: it is listed again.
    assert!(saga.retry_compensation(id).await.unwrap());
    assert_eq!(saga.unresolved_count().await.unwrap(), 0);
    assert_eq!(saga.resume_all().await.unwrap().unresolved, 1);
    assert_eq!(saga.unresolved_count().await.unwrap(), 1);

    mended.store(true, Ordering::SeqCst);
    assert!(saga.retry_compensation(id).await.unwrap());
    assert_eq!(saga.resume_all().await.unwrap().compensated, 1);
    let run = saga.status(id).await.unwrap().unwrap();
    assert_eq!(run.status(), RunStatus::Compensated);
    assert_eq!(run.undone(), ["c", "a", "b"]);
    let effects = world.effects().await;
    assert_eq!(effects[..7], TORN);
    assert_eq!(effects[7..], ["undo b false", "undo b false", "undo b true"]);
}

async fn a_run_of_another_version_is_left_alone<W: World>(world: W) {
    let of = |version| {
        Saga::<u32>::named("s")
            .durable(world.journal())
            .version(version)
            .step("a", noting(&world))
            .build()
            .unwrap()
    };
    let (old, new) = (of(1), of(2));
    let id = old.start("order-1", &1).await.unwrap().id;
    let report = new.resume_all().await.unwrap();
    assert_eq!((report.claimed, &report.other_versions[..]), (0, &[1][..]));
    let run = new.status(id).await.unwrap().unwrap();
    assert_eq!((run.status(), run.version()), (RunStatus::Running, 1));
    let refused = new.outcome(id).await.unwrap_err().to_string();
    assert!(refused.contains("is one of version 1, and this is version 2"), "{refused}");
    // A worker says so as well.
    let worker = new.worker().start().unwrap();
    eventually("the worker to see it", async || worker.report().other_versions == [1]).await;
    worker.close().await;
    assert!(world.effects().await.is_empty());
    assert_eq!(old.resume_all().await.unwrap().complete, 1);
    assert!(new.resume_all().await.unwrap().other_versions.is_empty());
}

async fn a_run_that_a_changed_definition_cannot_go_on_with_is_given_back_with_the_reason<
    W: World,
>(
    world: W,
) {
    let named = |first: &str, second: &str| {
        Saga::<u32>::named("s")
            .durable(world.journal())
            .step(first, noting(&world))
            .wait("pause", Duration::from_secs(3600))
            .step(second, noting(&world))
            .build()
            .unwrap()
    };
    let original = named("a", "z");
    let id = original.start("order-1", &1).await.unwrap().id;
    assert_eq!(original.resume_all().await.unwrap().waiting, 1);

    let lacking = "it has been at step `a`, which this definition lacks";
    let reordered = "it has been at step `pause`, but not through `b` before it";
    for (first, second, reason) in [("b", "z", lacking), ("b", "a", reordered)] {
        world.make_due().await;
        let changed = named(first, second);
        assert_eq!(changed.resume_all().await.unwrap().given_back, 1);
        let run = changed.status(id).await.unwrap().unwrap();
        assert!(run.problem().unwrap().starts_with(reason), "{:?}", run.problem());
        assert_eq!(run.status(), RunStatus::Running);
    }
    assert_eq!(world.effects().await, ["do a"], "a changed definition did something");

    world.execute("UPDATE {p}saga SET waits_until = 1").await;
    world.make_due().await;
    assert_eq!(original.resume_all().await.unwrap().complete, 1);
    assert_eq!(world.effects().await, ["do a", "do z"]);
}

async fn ended_runs_are_purged_and_unresolved_ones_are_kept<W: World>(world: W) {
    let mended = Arc::new(AtomicBool::new(true));
    let saga = torn(&world, &mended);
    let _ = saga.run("undone", &1).await.unwrap();
    mended.store(false, Ordering::SeqCst);
    let _ = saga.run("torn", &1).await.unwrap();

    let worker = saga.worker().retention(Duration::ZERO).start().unwrap();
    eventually("the purge", async || worker.report().purged == 1).await;
    worker.close().await;

    assert!(saga.status_of("undone").await.unwrap().is_none());
    assert_eq!(saga.status_of("torn").await.unwrap().unwrap().status(), RunStatus::Unresolved);
    let left = world.texts("SELECT DISTINCT run_id FROM {p}saga_journal").await;
    assert_eq!(left.len(), 1, "the journal of a purged run is left");
}
