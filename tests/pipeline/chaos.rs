//! Many runs while steps fail, panic, lose their connections and are killed: each run ends in
//! exactly one way.
//!
//! `ACEMQ_PIPELINE_RUNS` sets how many (default 600; 10,000 is the long form), `ACEMQ_SEED` the
//! seed.

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    time::Duration,
};

use acemq::{AceMq, HandlerError, Message, Pipeline, PipelineBuilder, RetryPolicy};
use serde::{Deserialize, Serialize};

use crate::{
    built, name,
    support::{Broker, Fixture, Inbox, amqp_url, eventually, run},
};

const STEPS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A run, and where it is meant to end.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    number: usize,
    /// The step that ends it early, and the one that rejects it.
    ends_at: Option<usize>,
    fails_at: Option<usize>,
    steps: Vec<usize>,
}

fn pipeline(mq: &AceMq, name: &str, results: &str) -> PipelineBuilder<Job, Job> {
    let step = |index: usize| {
        move |job: Message<Job>| async move {
            let mut job = job.into_payload();
            if fastrand::u8(..20) == 0 {
                return Err(HandlerError::retry("now and then"));
            }
            if job.fails_at == Some(index) {
                if job.number.is_multiple_of(3) {
                    panic!("meant to");
                }
                return Err(HandlerError::reject("meant to"));
            }
            if job.ends_at == Some(index) {
                return Ok(None);
            }
            job.steps.push(index);
            Ok(Some(job))
        }
    };
    mq.pipeline::<Job>(name)
        .retry(RetryPolicy::fixed(40, Duration::from_millis(5)))
        .concurrency(4)
        .step(STEPS[0], step(0))
        .step(STEPS[1], step(1))
        .step(STEPS[2], step(2))
        .step(STEPS[3], step(3))
        .step(STEPS[4], step(4))
        .results_to("", results)
}

/// Two steps in a process of their own; dropping it kills the process.
struct Steps(Child);

impl Steps {
    fn spawn(name: &str, results: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["chaos::child", "--exact", "--ignored", "--nocapture"])
            .env("ACEMQ_CHILD", format!("{name} {results}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process of the chaos test, which starts it by its name"]
async fn child() {
    let order = std::env::var("ACEMQ_CHILD").expect("only the chaos test starts this");
    let (name, results) = order.split_once(' ').unwrap();
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let _pipeline = built(pipeline(&mq, name, results).only(["b", "d"])).await;
    std::future::pending::<()>().await;
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

async fn every_run_ends_in_one_way(
    fx: &Fixture,
    disturb: impl AsyncFn(usize),
    here: Pipeline<Job>,
    results: &str,
) {
    let runs = setting("ACEMQ_PIPELINE_RUNS", 600);
    let mut random = fastrand::Rng::with_seed(setting("ACEMQ_SEED", 7) as u64);
    let mut inbox = Inbox::of(&fx.mq, results).await;
    let (mut completes, mut ends, mut fails) = (0, 0, 0);
    for number in 0..runs {
        let mut chosen = || random.usize(..STEPS.len());
        let (ends_at, fails_at) = match number % 10 {
            // The last step completes a run whatever it returns.
            0 => (Some(chosen() % (STEPS.len() - 1)), None),
            1 => (None, Some(chosen())),
            _ => (None, None),
        };
        match (ends_at, fails_at) {
            (Some(_), _) => ends += 1,
            (_, Some(_)) => fails += 1,
            _ => completes += 1,
        }
        here.send(&Job { number, ends_at, fails_at, steps: Vec::new() }).await.unwrap();
        if number % (runs / 8) == runs / 16 {
            disturb(number).await;
        }
    }
    let mut came: HashMap<usize, usize> = HashMap::new();
    while came.len() < completes {
        let message = inbox.next().await;
        let job: Job = serde_json::from_slice(message.body()).unwrap();
        assert_eq!(job.steps, [0, 1, 2, 3, 4], "{job:?}");
        assert!(job.ends_at.is_none() && job.fails_at.is_none(), "{job:?}");
        *came.entry(job.number).or_default() += 1;
    }
    let dead = async || {
        let mut dead = 0;
        for step in STEPS {
            let queue = format!("{}.{step}.dlq", here.name());
            dead += fx.mq.queue_length(&queue).await.unwrap().unwrap_or(0);
        }
        dead
    };
    eventually("every run to end", async || {
        let mut waiting = 0;
        for step in STEPS {
            let queue = format!("{}.{step}", here.name());
            waiting += fx.mq.queue_length(&queue).await.unwrap().unwrap_or(0);
        }
        waiting == 0 && dead().await >= fails
    })
    .await;
    let twice: usize = came.values().map(|times| times - 1).sum();
    println!(
        "{runs} runs: {completes} completed ({twice} twice), {ends} ended early, {} dead letters for {fails} failures",
        dead().await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_survive_killed_processes() {
    run(Broker::RabbitMq, |fx| async move {
        let name = name(&fx, &STEPS);
        let results = fx.queue("results").await;
        let here = built(pipeline(&fx.mq, &name, &results).only(["a", "c", "e"])).await;
        let steps = std::sync::Mutex::new(Steps::spawn(&name, &results));
        every_run_ends_in_one_way(
            &fx,
            async |_| *steps.lock().unwrap() = Steps::spawn(&name, &results),
            here,
            &results,
        )
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_survive_lost_connections() {
    use acemq::testing::MemoryBroker;

    run(Broker::Memory, |fx| async move {
        let name = name(&fx, &STEPS);
        let results = fx.queue("results").await;
        let broker = MemoryBroker::of(&fx.url);
        let other = fx.another().await;
        let _there = built(pipeline(&other, &name, &results).only(["b", "d"])).await;
        let here = built(pipeline(&other, &name, &results).only(["a", "c", "e"])).await;
        every_run_ends_in_one_way(
            &fx,
            async |_| {
                broker.disconnect_all("cut");
                crate::support::until_ready(&other).await;
            },
            here,
            &results,
        )
        .await;
        let _ = other.close().await;
    })
    .await;
}
