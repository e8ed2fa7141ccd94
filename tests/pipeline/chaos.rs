//! Many runs while steps fail and panic, connections are cut and processes are killed: each run ends
//! in exactly one way, and the counters say which.
//!
//! `ACEMQ_PIPELINE_RUNS` sets how many (default 600; 10,000 is the long form), `ACEMQ_SEED` the
//! seed.

use std::{
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use acemq::{AceMq, Error, Pipeline, testing::MemoryBroker};

use crate::{
    built,
    ends::{Ends, Job, STEPS, assert_counted, distinct, early, pipeline, until_empty},
    name,
    support::{Broker, Fixture, amqp_url, eventually, proxy::Proxy, run},
};

/// After how many runs something is disturbed once more.
const EVERY: usize = 75;

/// A process that runs some of the steps; dropping it kills it.
struct Steps(Child);

impl Steps {
    fn spawn(name: &str, results: &str, steps: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["chaos::child", "--exact", "--ignored", "--nocapture"])
            .env("ACEMQ_CHILD", format!("{name} {results} {steps}"))
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
#[ignore = "a process of the chaos test, which starts it by its name"]
async fn child() {
    let order = std::env::var("ACEMQ_CHILD").expect("only the chaos test starts this");
    let [name, results, steps] = order.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{order}")
    };
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let _pipeline = built(pipeline(&mq, name, results).only(steps.split(','))).await;
    std::future::pending::<()>().await;
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn jobs(count: usize) -> Vec<Job> {
    let mut random = fastrand::Rng::with_seed(setting("ACEMQ_SEED", 7) as u64);
    (0..count).map(|number| Job::new(number, &mut random)).collect()
}

/// Starts each run, disturbing it now and then. Returns how many entered: more than there are
/// where it stayed open whether one had.
async fn send(jobs: &[Job], entrance: &Pipeline<Job>, disturb: impl AsyncFn(usize)) -> u64 {
    let mut entered = 0;
    for (index, job) in jobs.iter().enumerate() {
        if index % EVERY == EVERY / 2 {
            disturb(index).await;
        }
        while let Err(error) = entrance.send(job).await {
            assert!(
                matches!(error, Error::Interrupted { .. } | Error::Disconnected { .. }),
                "{error:?}"
            );
        }
        entered += 1;
    }
    entered
}

/// A pipeline's name and the queues of its ends, cleaned up with the fixture.
async fn places(fx: &Fixture) -> (String, String) {
    let results = fx.queue("results").await;
    let ended = early(&results);
    for suffix in ["", ".dlq", ".parked"] {
        fx.owns(format!("{ended}{suffix}"));
    }
    let name = name(fx, &STEPS);
    for step in STEPS {
        // What reads the dead letters has its own.
        for suffix in [".dlq.dlq", ".dlq.parked"] {
            fx.owns(format!("{name}.{step}{suffix}"));
        }
    }
    fx.mq.declare(&acemq::Topology::new().queue(acemq::Queue::new(ended))).await.unwrap();
    (name, results)
}

/// A handle whose connections can be cut.
pub async fn cuttable(fx: &Fixture) -> (AceMq, Box<dyn Fn() + Send + Sync>) {
    let (url, cut): (_, Box<dyn Fn() + Send + Sync>) = match fx.broker {
        Broker::Memory => {
            let broker = MemoryBroker::of(&fx.url);
            (fx.url.clone(), Box::new(move || broker.disconnect_all("cut")))
        }
        Broker::RabbitMq => {
            let mut url = url::Url::parse(&amqp_url()).unwrap();
            let broker = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672));
            let proxy = Proxy::to(&broker).await;
            url.set_host(Some("127.0.0.1")).unwrap();
            url.set_port(Some(proxy.port())).unwrap();
            (url.to_string(), Box::new(move || proxy.cut()))
        }
    };
    let options = AceMq::options(url)
        .reconnect_cap(Duration::from_millis(200))
        .shutdown_timeout(Duration::from_secs(5));
    (options.connect().await.unwrap(), cut)
}

on_both_brokers! {
    async fn counters_and_ledger_are_the_same_where_nothing_is_lost(fx) {
        let (name, results) = places(&fx).await;
        let jobs = jobs(200);
        let here = built(pipeline(&fx.mq, &name, &results)).await;
        assert_eq!(send(&jobs, &here, async |_| ()).await, 200);
        let ends = Ends::of(&fx, &jobs, &name, &results).await;
        ends.assert_each_of(&jobs);
        assert_eq!(ends.twice(), 0);
        eventually("every end to be counted", async || {
            let stats = here.stats();
            let counted = (stats.entered, stats.completed, stats.ended_early, stats.failed);
            let (completed, early) = (distinct(&ends.completed), distinct(&ends.early));
            counted == (200, completed, early, distinct(&ends.dead))
        })
        .await;
        until_empty(&fx, &here).await;
        eventually("every handler to end", async || here.in_flight() == 0).await;
    }

    async fn runs_survive_lost_connections(fx) {
        let (name, results) = places(&fx).await;
        let jobs = jobs(setting("ACEMQ_PIPELINE_RUNS", 600) / 2);
        let (near, cut_near) = cuttable(&fx).await;
        let (far, cut_far) = cuttable(&fx).await;
        let here = built(pipeline(&near, &name, &results).only(["a", "c", "e"])).await;
        let there = built(pipeline(&far, &name, &results).only(["b", "d"])).await;
        let disturb = async |index| if index % 2 == 0 { cut_near() } else { cut_far() };
        let entered = send(&jobs, &here, disturb).await;
        let mut ends = Ends::of(&fx, &jobs, &name, &results).await;
        until_empty(&fx, &here).await;
        ends.assert_each_of(&jobs);
        assert_eq!(here.entered(), entered);
        let _ = tokio::join!(here.close(), there.close());
        ends.read_rest(&fx).await;
        ends.assert_each_of(&jobs);
        assert_counted("completed", here.completed() + there.completed(), &ends.completed);
        assert_counted("early", here.ended_early() + there.ended_early(), &ends.early);
        println!("{} runs over cut connections: {} ends came twice", jobs.len(), ends.twice());
        let _ = tokio::join!(near.close(), far.close());
    }
}

/// Steps over three processes; two of them are killed in turn, and the third is cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_survive_killed_processes() {
    run(Broker::RabbitMq, |fx| async move {
        let (name, results) = places(&fx).await;
        let jobs = jobs(setting("ACEMQ_PIPELINE_RUNS", 600));
        let (mq, cut) = cuttable(&fx).await;
        let here = built(pipeline(&mq, &name, &results).only(["a", "e"])).await;
        let others = Mutex::new(["b,d", "c"].map(|steps| Steps::spawn(&name, &results, steps)));
        let turn = Mutex::new(0);
        let disturb = async |_| {
            let mut turn = turn.lock().unwrap();
            *turn += 1;
            match *turn % 3 {
                0 => cut(),
                1 => others.lock().unwrap()[0] = Steps::spawn(&name, &results, "b,d"),
                _ => others.lock().unwrap()[1] = Steps::spawn(&name, &results, "c"),
            }
        };
        let entered = send(&jobs, &here, disturb).await;
        let mut ends = Ends::of(&fx, &jobs, &name, &results).await;
        until_empty(&fx, &here).await;
        ends.assert_each_of(&jobs);
        assert_eq!(here.entered(), entered);
        // The last step runs here only, so that its counts are never lost with a process.
        here.close().await;
        ends.read_rest(&fx).await;
        ends.assert_each_of(&jobs);
        assert_counted("completed", here.completed(), &ends.completed);
        println!("{} runs over killed processes: {} ends came twice", jobs.len(), ends.twice());
        drop(others);
        mq.close().await;
    })
    .await;
}
