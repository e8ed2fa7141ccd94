//! What a step of a saga costs beside the bare calls of the same functions.
//!
//! `cargo bench --bench saga`; settings: `ACEMQ_BENCH_MESSAGES` (runs of a round),
//! `ACEMQ_BENCH_ROUNDS`.

mod support;

use std::time::Duration;

use acemq::{Saga, StepError};
use support::{setting, timed};

const STEPS: u32 = 5;

async fn step(count: u64) -> Result<u64, StepError> {
    tokio::task::yield_now().await;
    Ok(count + 1)
}

#[tokio::main]
async fn main() {
    let runs = u32::try_from(setting("ACEMQ_BENCH_MESSAGES", 20_000)).unwrap();
    let mut builder = Saga::<u64>::named("bench")
        .step("0", step)
        .compensate_with(|_| async { Ok::<_, StepError>(()) });
    for index in 1..STEPS {
        builder = builder
            .step(index.to_string(), step)
            .compensate_with(|_| async { Ok::<_, StepError>(()) });
    }
    let saga = builder.build().unwrap();
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=setting("ACEMQ_BENCH_ROUNDS", 5) {
        let by_hand = timed(async {
            for _ in 0..runs {
                let counted = tokio::spawn(async {
                    let mut count = 0;
                    for _ in 0..STEPS {
                        count = step(count).await.unwrap();
                    }
                    count
                });
                assert_eq!(counted.await.unwrap(), u64::from(STEPS));
            }
        })
        .await;
        let by_saga = timed(async {
            for _ in 0..runs {
                assert_eq!(saga.run(0).await.into_state(), u64::from(STEPS));
            }
        })
        .await;
        if round > 0 {
            let each = |time: Duration| time / runs / STEPS;
            println!("a step by hand {:?}, in a saga {:?}", each(by_hand), each(by_saga));
            bare.push(by_hand.as_secs_f64());
            ours.push(by_saga.as_secs_f64());
        }
    }
    let (bare, ours) = (support::median(bare), support::median(ours));
    println!("saga ratio={:.3}", bare / ours);
}
