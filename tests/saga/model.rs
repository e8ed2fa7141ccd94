//! Every way in which up to five steps can end, against a model of what should happen.

use std::time::Duration;

use acemq::{RetryPolicy, Saga, SagaFailure, SagaOutcome, StepError};

use crate::Log;

const LIMIT: Duration = Duration::from_secs(1);

/// How a step ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    Done,
    NotDone,
    Unknown,
    Panics,
    Hangs,
}

/// What its compensation does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Undo {
    Missing,
    Works,
    Fails,
}

fn saga(steps: &[(Ends, Undo)], log: &Log) -> Saga<Vec<usize>> {
    let mut builder = None;
    for (index, (ends, undo)) in steps.iter().copied().enumerate() {
        let done = log.clone();
        let work = move |mut state: Vec<usize>| {
            let log = done.clone();
            async move {
                log.note(format!("do {index}"));
                match ends {
                    Ends::Done => {
                        state.push(index);
                        Ok(state)
                    }
                    Ends::NotDone => Err(StepError::not_done("no")),
                    Ends::Unknown => Err(StepError::unknown("who knows")),
                    Ends::Panics => panic!("ouch"),
                    Ends::Hangs => std::future::pending().await,
                }
            }
        };
        let name = format!("step {index}");
        let step = match builder {
            None => Saga::named("model").step(name, work),
            Some(Next::Stepped(builder)) => acemq::SagaBuilder::step(builder, name, work),
            Some(Next::Compensated(builder)) => acemq::SagaBuilder::step(builder, name, work),
        };
        let step = step.timeout(LIMIT);
        let undone = log.clone();
        builder = Some(match undo {
            Undo::Missing => Next::Stepped(step),
            _ => Next::Compensated(
                step.compensate_with(move |state: Vec<usize>| {
                    undone.note(format!("undo {index} of {state:?}"));
                    async move {
                        match undo {
                            Undo::Works => Ok(()),
                            _ => Err(StepError::not_done("cannot")),
                        }
                    }
                })
                .retry(RetryPolicy::none()),
            ),
        });
    }
    match builder {
        None => Saga::named("model").build(),
        Some(Next::Stepped(builder)) => builder.build(),
        Some(Next::Compensated(builder)) => builder.build(),
    }
    .unwrap()
}

enum Next {
    Stepped(acemq::SagaBuilder<Vec<usize>, acemq::saga::Stepped>),
    Compensated(acemq::SagaBuilder<Vec<usize>, acemq::saga::Compensated>),
}

/// What should happen, written as plainly as possible.
#[derive(Debug, Default, PartialEq)]
struct Expected {
    log: Vec<String>,
    completed: Vec<usize>,
    failed_at: Option<usize>,
    undone: Vec<usize>,
    passed_over: Vec<usize>,
    unresolved: Vec<usize>,
}

fn expected(steps: &[(Ends, Undo)]) -> Expected {
    let mut expected = Expected::default();
    let mut effective = Vec::new();
    for (index, (ends, _)) in steps.iter().enumerate() {
        expected.log.push(format!("do {index}"));
        if *ends == Ends::Done {
            expected.completed.push(index);
            effective.push(index);
            continue;
        }
        expected.failed_at = Some(index);
        if *ends != Ends::NotDone {
            effective.push(index);
        }
        break;
    }
    if expected.failed_at.is_some() {
        for index in effective.into_iter().rev() {
            let (_, undo) = steps[index];
            if undo != Undo::Missing {
                expected.log.push(format!("undo {index} of {:?}", expected.completed));
            }
            match undo {
                Undo::Missing => expected.passed_over.push(index),
                Undo::Works => expected.undone.push(index),
                Undo::Fails => expected.unresolved.push(index),
            }
        }
    }
    expected
}

fn names(indexes: &[usize]) -> Vec<String> {
    indexes.iter().map(|index| format!("step {index}")).collect()
}

fn check(steps: &[(Ends, Undo)], outcome: &SagaOutcome<Vec<usize>>, log: Vec<String>) {
    let expected = expected(steps);
    assert_eq!(log, expected.log, "{steps:?}");
    assert_eq!(outcome.completed(), names(&expected.completed), "{steps:?}");
    assert_eq!(outcome.state(), &expected.completed, "{steps:?}");
    assert_eq!(outcome.undone(), names(&expected.undone), "{steps:?}");
    assert_eq!(outcome.passed_over(), names(&expected.passed_over), "{steps:?}");
    let unresolved: Vec<String> = outcome.unresolved().iter().map(|u| u.step.clone()).collect();
    assert_eq!(unresolved, names(&expected.unresolved), "{steps:?}");
    let failed_at = expected.failed_at.map(|index| format!("step {index}"));
    assert_eq!(outcome.failed_at(), failed_at.as_deref(), "{steps:?}");
    assert_eq!(outcome.is_complete(), expected.failed_at.is_none());
    assert_eq!(outcome.has_unresolved(), !expected.unresolved.is_empty());
    let compensated = expected.failed_at.is_some() && expected.unresolved.is_empty();
    assert_eq!(outcome.compensated(), compensated);
    let Some(index) = expected.failed_at else {
        assert!(outcome.failure().is_none());
        return;
    };
    let failure = outcome.failure().unwrap();
    match steps[index].0 {
        Ends::Done => unreachable!(),
        Ends::NotDone => assert!(!failure.is_unknown() && failure.to_string() == "no"),
        Ends::Unknown => assert!(failure.is_unknown() && failure.to_string() == "who knows"),
        Ends::Panics => {
            assert!(matches!(failure, SagaFailure::Panicked { text } if text == "ouch"))
        }
        Ends::Hangs => {
            assert!(matches!(failure, SagaFailure::TimedOut { after } if *after == LIMIT))
        }
    }
}

/// Every list of compensations for this many steps.
fn undos(steps: usize) -> Vec<Vec<Undo>> {
    let mut lists = vec![Vec::new()];
    for _ in 0..steps {
        lists = [Undo::Missing, Undo::Works, Undo::Fails]
            .into_iter()
            .flat_map(|undo| {
                lists
                    .iter()
                    .map(move |list| [list.as_slice(), &[undo]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    lists
}

#[tokio::test(start_paused = true)]
async fn every_end_of_up_to_five_steps_is_what_the_model_says() {
    // A step that panics says so on stderr, thousands of times.
    std::panic::set_hook(Box::new(|_| {}));
    let mut runs = 0;
    for count in 0..=5 {
        for undo in undos(count) {
            let ends = [Ends::NotDone, Ends::Unknown, Ends::Panics, Ends::Hangs];
            let failing = (0..count).flat_map(|at| ends.map(|end| Some((at, end))));
            for failing in failing.chain([None]) {
                let steps: Vec<(Ends, Undo)> = undo
                    .iter()
                    .enumerate()
                    .map(|(index, undo)| match failing {
                        Some((at, end)) if at == index => (end, *undo),
                        _ => (Ends::Done, *undo),
                    })
                    .collect();
                let log = Log::default();
                let outcome = saga(&steps, &log).run(Vec::new()).await;
                check(&steps, &outcome, log.take());
                runs += 1;
            }
        }
    }
    let _ = std::panic::take_hook();
    assert_eq!(runs, 1 + 3 * 5 + 9 * 9 + 27 * 13 + 81 * 17 + 243 * 21);
}
