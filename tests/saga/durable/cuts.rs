//! Connections to the database that are cut while runs are under way.

use std::time::Duration;

use acemq::{RetryPolicy, Saga, StepError};
use futures::FutureExt;

use super::{
    whoami,
    world::{Pg, World, postgres_url, run},
};
use crate::support::{eventually, proxy::Proxy};

const RUNS: u64 = 12;

/// Cuts happen after a given number of effects, so that they meet runs under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_outlive_connections_that_are_cut() {
    run(|world: Pg| async move {
        let url = url::Url::parse(&postgres_url()).unwrap();
        let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
        let proxy = Proxy::to(&target).await;
        let mut through = url.clone();
        through.set_host(Some("127.0.0.1")).unwrap();
        through.set_port(Some(proxy.port())).unwrap();
        let cut_off = world.at(through.as_str()).await;

        // Steps have their effects by another way than the journal's.
        let (one, two, name) = (world.clone(), world.clone(), world.name().to_owned());
        let saga =
            Saga::<u64>::named("s")
                .durable(cut_off.journal())
                .lease(Duration::from_secs(2))
                .step("a", move |run: u64| {
                    let world = one.clone();
                    async move {
                        Ok::<_, StepError>(world.effect(&format!("{} {run}", whoami())).await?)
                    }
                })
                .step_in_transaction("b", move |run: u64, tx| {
                    let name = name.clone();
                    async move {
                        Pg::effect_in(tx, &name, &format!("{} {run}", whoami())).await?;
                        Ok::<_, StepError>(run)
                    }
                    .boxed()
                })
                // A cut is a failure of the step as well: its transaction was rolled back.
                .retry(RetryPolicy::fixed(50, Duration::from_millis(10)))
                .step("c", move |run: u64| {
                    let world = two.clone();
                    async move {
                        Ok::<_, StepError>(world.effect(&format!("{} {run}", whoami())).await?)
                    }
                })
                .build()
                .unwrap();
        let poll = Duration::from_millis(20);
        let worker = saga.worker().concurrency(4).poll_interval(poll).start().unwrap();
        // A start that was cut off is started again with its key.
        let start = async |run: u64| {
            eventually("a start", async || saga.start(&run.to_string(), &run).await.is_ok()).await;
        };
        for run in 0..RUNS {
            start(run).await;
            if run % 3 == 2 {
                eventually("a run to be under way", async || {
                    let effects = world.effects().await;
                    effects.iter().any(|effect| *effect == format!("do a {run}"))
                })
                .await;
                proxy.cut();
            }
        }
        let ended = async || {
            let sql = "SELECT run_key FROM {p}saga WHERE status = 'COMPLETE'";
            world.texts(sql).await.len() as u64 == RUNS
        };
        eventually("every run to end", ended).await;
        worker.close().await;
        let effects = world.effects().await;
        for run in 0..RUNS {
            let count = |step| {
                effects.iter().filter(|effect| **effect == format!("do {step} {run}")).count()
            };
            assert!(count("a") >= 1 && count("c") >= 1, "run {run} lost a step");
            assert_eq!(count("b"), 1, "run {run}: what is in the journal's transaction");
        }
    })
    .await;
}
