//! Callers that go away.

use std::{sync::Arc, time::Duration};

use acemq::{Saga, StepError};

use crate::Log;

const STEPS: usize = 5;

fn saga(log: &Log) -> Saga<u32> {
    let step = |index: usize| {
        let log = log.clone();
        move |_: u32| {
            let log = log.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                log.note(format!("do {index}"));
                Ok::<(), StepError>(())
            }
        }
    };
    let undo = |index: usize| {
        let log = log.clone();
        move |_: u32| {
            let log = log.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                log.note(format!("undo {index}"));
                Ok::<(), StepError>(())
            }
        }
    };
    let mut saga = Saga::named("s").step("0", step(0)).compensate_with(undo(0));
    for index in 1..STEPS {
        saga = saga.step(index.to_string(), step(index)).compensate_with(undo(index));
    }
    saga.build().unwrap()
}

/// Field case B70: dropped at any moment, a saga is all done or all undone in the end.
#[tokio::test(start_paused = true)]
async fn a_saga_dropped_at_any_moment_is_all_done_or_all_undone() {
    for moment in 0..100 {
        let log = Log::default();
        let saga = saga(&log);
        let limit = Duration::from_micros(moment * 600);
        let finished = tokio::time::timeout(limit, saga.run(0)).await.is_ok();
        // The clock stands until everything in the background is done.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let log = log.take();
        let done = log.iter().filter(|what| what.starts_with("do")).count();
        let undone = log.iter().filter(|what| what.starts_with("undo")).count();
        assert!(done == undone || (done == STEPS && undone == 0), "{moment}: {log:?}");
        assert!(!finished || done == STEPS);
        let expected: Vec<String> = (0..done)
            .map(|i| format!("do {i}"))
            .chain((0..undone).rev().map(|i| format!("undo {i}")))
            .collect();
        assert_eq!(log, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_aborted_does_not_abort_its_compensation() {
    let log = Log::default();
    let saga = Arc::new(saga(&log));
    let running = tokio::spawn(async move { saga.run(0).await.is_complete() });
    tokio::time::sleep(Duration::from_millis(25)).await;
    running.abort();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(log.take(), ["do 0", "do 1", "do 2", "undo 2", "undo 1", "undo 0"]);
}
