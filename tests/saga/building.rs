//! What can be built, and what is refused.

use std::time::Duration;

use acemq::{Error, ParallelSteps, Saga, StepError};

async fn nothing(_: u32) -> Result<(), StepError> {
    Ok(())
}

fn refused<T>(built: acemq::Result<T>) -> String {
    match built {
        Err(error @ Error::InvalidOption { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("was built"),
    }
}

#[test]
fn names_that_cannot_work_are_refused_with_the_name() {
    assert!(refused(Saga::<u32>::named("").build()).contains("saga"));
    assert!(refused(Saga::<u32>::named("s").step("", nothing).build()).contains("step"));
    let long = "x".repeat(256);
    assert!(refused(Saga::<u32>::named("s").step(long.as_str(), nothing).build()).contains("step"));
    let twice = Saga::<u32>::named("s").step("pay", nothing).step("pay", nothing).build();
    assert!(refused(twice).contains("pay"));
    let group =
        ParallelSteps::<u32>::new().step("pay", |_| async { Ok::<_, StepError>(|_: &mut u32| {}) });
    let twice = Saga::<u32>::named("s").step("pay", nothing).parallel(group).build();
    assert!(refused(twice).contains("pay"));
}

#[test]
fn options_that_cannot_work_are_refused() {
    let saga = || Saga::<u32>::named("s").step("pay", nothing);
    assert!(refused(saga().timeout(Duration::ZERO).build()).contains("timeout"));
    let undo = saga().compensate_with(nothing).timeout(Duration::ZERO);
    assert!(refused(undo.build()).contains("timeout"));
    let policy = acemq::RetryPolicy::fixed(0, Duration::ZERO);
    refused(saga().retry(policy).build());
    let empty = Saga::<u32>::named("s").parallel(ParallelSteps::new()).build();
    assert!(refused(empty).contains("parallel"));
}

#[tokio::test]
async fn an_empty_saga_succeeds_and_runs_nothing() {
    let outcome = Saga::<u32>::named("nothing").build().unwrap().run(7).await;
    assert!(outcome.is_complete() && outcome.completed().is_empty());
    assert_eq!(outcome.into_state(), 7);
}

#[test]
fn a_saga_tells_its_steps() {
    let saga = Saga::<u32>::named("s").step("a", nothing).step("b", nothing).build().unwrap();
    assert_eq!(saga.name(), "s");
    assert_eq!(saga.steps().collect::<Vec<_>>(), ["a", "b"]);
}
