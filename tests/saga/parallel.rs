//! Steps side by side.

use std::time::Duration;

use acemq::{ParallelSteps, Saga, StepError};

use crate::Log;

/// Field case B73: all branches end before anything is undone, in the reverse order of their ends.
#[tokio::test(start_paused = true)]
async fn every_interleaving_of_three_branches_is_undone_in_reverse() {
    let orders = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
    for delays in orders {
        for failing in [None, Some(0), Some(1), Some(2)] {
            let log = Log::default();
            let branch = |index: usize| {
                let (delay, log) = (Duration::from_secs(delays[index]), log.clone());
                move |_: Vec<usize>| {
                    let log = log.clone();
                    async move {
                        tokio::time::sleep(delay).await;
                        log.note(format!("do {index}"));
                        if failing == Some(index) {
                            return Err(StepError::not_done("no"));
                        }
                        Ok(move |state: &mut Vec<usize>| state.push(index))
                    }
                }
            };
            let undo = |index: usize| {
                let log = log.clone();
                move |_: Vec<usize>| {
                    log.note(format!("undo {index}"));
                    async { Ok::<_, StepError>(()) }
                }
            };
            let group = ParallelSteps::new()
                .step("0", branch(0))
                .compensate_with(undo(0))
                .step("1", branch(1))
                .compensate_with(undo(1))
                .step("2", branch(2))
                .compensate_with(undo(2));
            let saga = Saga::<Vec<usize>>::named("s").parallel(group).build().unwrap();
            let outcome = saga.run(Vec::new()).await;

            let mut ended = [0, 1, 2];
            ended.sort_by_key(|index| delays[*index]);
            let mut expected: Vec<String> = ended.iter().map(|i| format!("do {i}")).collect();
            let done: Vec<usize> = ended.into_iter().filter(|i| failing != Some(*i)).collect();
            if failing.is_some() {
                expected.extend(done.iter().rev().map(|i| format!("undo {i}")));
            }
            assert_eq!(log.take(), expected, "{delays:?}, {failing:?}");
            assert_eq!(outcome.state(), &done);
            assert_eq!(outcome.is_complete(), failing.is_none());
        }
    }
}
