//! Retries, timeouts, and keys that stay the same.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use acemq::{RetryPolicy, Saga, StepContext, StepError};
use tokio::time::Instant;

use crate::Log;

fn policy(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, Duration::from_secs(10))
}

#[tokio::test(start_paused = true)]
async fn a_step_is_tried_by_its_policy_under_one_key() {
    let log = Log::default();
    let seen = log.clone();
    let saga =
        Saga::<u32>::named("s")
            .step("pay", move |_| {
                let context = StepContext::current().unwrap();
                assert_eq!(context.step(), "pay");
                seen.note(context.idempotency_key());
                async move {
                    if context.attempt() < 3 { Err(StepError::not_done("busy")) } else { Ok(()) }
                }
            })
            .retry(policy(3))
            .build()
            .unwrap();
    let started = Instant::now();
    assert!(saga.run(0).await.is_complete());
    assert_eq!(started.elapsed(), Duration::from_secs(20));
    let keys = log.take();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0] && key.ends_with("/pay")), "{keys:?}");
    assert!(saga.run(0).await.is_complete());
    assert_ne!(log.take()[0], keys[0], "another run");
}

#[tokio::test(start_paused = true)]
async fn a_fatal_failure_is_not_tried_again_and_a_spent_policy_ends() {
    for (fatal, attempts) in [(true, 1), (false, 4)] {
        let tried = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&tried);
        let saga = Saga::<u32>::named("s")
            .step("pay", move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                async move {
                    Err::<(), _>(if fatal {
                        StepError::fatal("no")
                    } else {
                        StepError::not_done("no")
                    })
                }
            })
            .retry(policy(4))
            .build()
            .unwrap();
        assert_eq!(saga.run(0).await.failed_at(), Some("pay"));
        assert_eq!(tried.load(Ordering::Relaxed), attempts);
    }
}

/// One attempt in doubt is enough: a later one that says "not done" speaks for itself only.
#[tokio::test(start_paused = true)]
async fn a_step_with_one_attempt_in_doubt_is_compensated() {
    let log = Log::default();
    let undone = log.clone();
    let saga = Saga::<u32>::named("s")
        .step("pay", |_| async {
            match StepContext::current().unwrap().attempt() {
                1 => Err::<(), _>(StepError::unknown("timed out")),
                _ => Err(StepError::not_done("refused")),
            }
        })
        .retry(policy(2))
        .compensate_with(move |_| {
            undone.note(StepContext::current().unwrap().idempotency_key());
            async { Ok::<_, StepError>(()) }
        })
        .build()
        .unwrap();
    let outcome = saga.run(0).await;
    assert_eq!(outcome.undone(), ["pay"]);
    assert!(log.take()[0].ends_with("/pay/undo"));
    assert_eq!(outcome.failure().unwrap().to_string(), "refused");
}

/// Field case B69: both settings.
#[tokio::test(start_paused = true)]
async fn a_failed_step_is_itself_undone_only_if_it_says_so() {
    for undo in [false, true] {
        let step = Saga::<u32>::named("s")
            .step("half-way", |_| async { Err::<(), _>(StepError::not_done("no")) });
        let step = if undo { step.undo_on_failure() } else { step };
        let saga = step.compensate_with(|_| async { Ok::<_, StepError>(()) }).build().unwrap();
        assert_eq!(saga.run(0).await.undone().len(), usize::from(undo));
    }
}

/// Field case B67: a compensation that fails, panics or hangs stops no other.
#[tokio::test(start_paused = true)]
async fn a_compensation_is_tried_by_its_policy_and_stops_no_other() {
    for kind in ["fails", "panics", "hangs"] {
        let log = Log::default();
        let note = |name: &'static str| {
            let log = log.clone();
            move |_: u32| {
                log.note(name);
                async { Ok::<_, StepError>(()) }
            }
        };
        let broken = log.clone();
        let saga = Saga::<u32>::named("s")
            .step("1", |_| async { Ok::<(), StepError>(()) })
            .compensate_with(note("C1"))
            .step("2", |_| async { Ok::<(), StepError>(()) })
            .compensate_with(note("C2"))
            .step("3", |_| async { Ok::<(), StepError>(()) })
            .compensate_with(move |_| {
                broken.note("C3");
                async move {
                    match kind {
                        "fails" => Err(StepError::not_done("no")),
                        "panics" => panic!("ouch"),
                        _ => std::future::pending().await,
                    }
                }
            })
            .retry(policy(3))
            .timeout(Duration::from_secs(5))
            .step("4", |_| async { Ok::<(), StepError>(()) })
            .compensate_with(note("C4"))
            .step("5", |_| async { Err::<(), _>(StepError::not_done("stop")) })
            .build()
            .unwrap();
        let outcome = saga.run(0).await;
        let tries = if kind == "panics" { 1 } else { 3 };
        let order = [vec!["C4"], vec!["C3"; tries], vec!["C2", "C1"]].concat();
        assert_eq!(log.take(), order, "{kind}");
        assert_eq!(outcome.undone(), ["4", "2", "1"]);
        assert_eq!(outcome.unresolved().len(), 1);
        assert_eq!(outcome.unresolved()[0].step, "3");
        assert!(outcome.has_unresolved() && !outcome.compensated());
    }
}

#[tokio::test(start_paused = true)]
async fn a_compensation_that_works_the_second_time_resolves_its_step() {
    let saga = Saga::<u32>::named("s")
        .step("pay", |_| async { Ok::<(), StepError>(()) })
        .compensate_with(|_| async {
            match StepContext::current().unwrap() {
                context if context.attempt() == 1 => Err(StepError::not_done("busy")),
                context => {
                    assert!(context.is_compensation());
                    Ok(())
                }
            }
        })
        .step("ship", |_| async { Err::<(), _>(StepError::not_done("no")) })
        .build()
        .unwrap();
    assert!(saga.run(0).await.compensated());
}
