//! What a step of a saga costs beside the bare calls of the same functions, and what a durable run
//! costs beside the bare SQL that it needs, on PostgreSQL.
//!
//! `cargo bench --bench saga`; settings: `ACEMQ_BENCH_MESSAGES` (runs of a round in memory),
//! `ACEMQ_BENCH_DURABLE` (durable runs of a round), `ACEMQ_BENCH_ROUNDS`, `DATABASE_URL`.

mod support;

use std::time::Duration;

use acemq::{DurableSaga, PostgresSagaJournal, Saga, StepError};
use futures::{StreamExt, stream};
use sqlx::{PgPool, postgres::PgPoolOptions};
use support::{median, setting, timed};
use uuid::Uuid;

const STEPS: u32 = 5;

async fn step(count: u64) -> Result<u64, StepError> {
    tokio::task::yield_now().await;
    Ok(count + 1)
}

#[tokio::main]
async fn main() {
    let lines = [in_memory().await, durable().await];
    println!("{}", lines.join("\n"));
}

async fn in_memory() -> String {
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
    format!("saga ratio={:.3}", median(bare) / median(ours))
}

// --- with a journal ------------------------------------------------------------------------------

/// Runs at a time.
const LANES: usize = 8;
const PREFIX: &str = "acemq_bench_";

async fn durable() -> String {
    let runs = setting("ACEMQ_BENCH_DURABLE", 500);
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into());
    let pool = PgPoolOptions::new().max_connections(16).connect(&url).await.unwrap();
    let journal = PostgresSagaJournal::new(pool.clone()).table_prefix(PREFIX).unwrap();
    journal.migrate().await.unwrap();
    let mut builder = Saga::<u64>::named("bench").durable(journal).step("0", step);
    for index in 1..STEPS {
        builder = builder.step(index.to_string(), step);
    }
    let saga = builder.build().unwrap();

    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    println!("{:>6} {:>14} {:>14} {:>8}", "round", "bare SQL /s", "durable /s", "ratio");
    for round in 0..=setting("ACEMQ_BENCH_ROUNDS", 5) {
        empty(&pool).await;
        let bare = timed(in_lanes(runs, |run| by_hand(pool.clone(), run))).await;
        empty(&pool).await;
        let ours = timed(in_lanes(runs, |run| by_saga(saga.clone(), run))).await;
        if round > 0 {
            #[allow(clippy::cast_precision_loss)] // some hundreds
            let rate = |time: Duration| runs as f64 / time.as_secs_f64();
            let (bare, ours) = (rate(bare), rate(ours));
            println!("{round:>6} {bare:>14.0} {ours:>14.0} {:>8.3}", ours / bare);
            rates.push(ours);
            ratios.push(ours / bare);
        }
    }
    empty(&pool).await;
    format!("saga_durable rate={:.0} ratio={:.3}", median(rates), median(ratios))
}

async fn empty(pool: &PgPool) {
    let sql = "TRUNCATE acemq_bench_saga, acemq_bench_saga_journal, acemq_bench_saga_signals";
    sqlx::raw_sql(sql).execute(pool).await.unwrap();
}

async fn in_lanes<F: Future<Output = ()> + Send + 'static>(runs: usize, run: impl Fn(usize) -> F) {
    let tasks = stream::iter(0..runs).map(|number| tokio::spawn(run(number)));
    tasks.buffer_unordered(LANES).for_each(|done| async { done.unwrap() }).await;
}

async fn by_saga(saga: DurableSaga<u64, PostgresSagaJournal>, run: usize) {
    let outcome = saga.run(&run.to_string(), &0).await.unwrap();
    assert_eq!(*outcome.state(), u64::from(STEPS));
}

/// One transaction for the start, one before each step, and one for the end, with nothing but the
/// rows that a journal needs.
async fn by_hand(pool: PgPool, run: usize) {
    let (id, token) = (Uuid::now_v7().to_string(), Uuid::new_v4().to_string());
    let create = "INSERT INTO acemq_bench_saga
        (id, saga, version, run_key, status, state, next_at, lease_token, created_at)
        VALUES ($1, 'bench', 1, $2, 'RUNNING', '0', 1, $3, 1)";
    sqlx::query(create).bind(&id).bind(run.to_string()).bind(&token).execute(&pool).await.unwrap();
    let (mut state, mut seq) = (0, 0);
    for index in 0..=STEPS {
        let mut tx = pool.begin().await.unwrap();
        let keep = "UPDATE acemq_bench_saga SET next_at = $1 WHERE id = $2 AND lease_token = $3";
        sqlx::query(keep)
            .bind((index < STEPS).then_some(2_i64))
            .bind(&id)
            .bind(&token)
            .execute(&mut *tx)
            .await
            .unwrap();
        for kind in ["DONE", "STARTED"] {
            if (kind == "DONE" && index == 0) || (kind == "STARTED" && index == STEPS) {
                continue;
            }
            seq += 1_i64;
            let entry = "INSERT INTO acemq_bench_saga_journal
                (run_id, seq, kind, step, attempt, state, at) VALUES ($1, $2, $3, $4, 1, $5, 1)";
            sqlx::query(entry)
                .bind(&id)
                .bind(seq)
                .bind(kind)
                .bind(index.to_string())
                .bind(state.to_string())
                .execute(&mut *tx)
                .await
                .unwrap();
        }
        tx.commit().await.unwrap();
        if index < STEPS {
            state = step(state).await.unwrap();
        }
    }
    assert_eq!(state, u64::from(STEPS));
}
