//! Several owners: workers that race, one that stops, one that was frozen; and steps that compete
//! with the journal for connections.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use acemq::{DurableSaga, ParallelSteps, RunStatus, Saga, StepError};
use tokio::sync::Semaphore;

use super::{
    noting,
    world::{Lite, Pg, World, on_every_database, run},
};
use crate::support::{eventually, soon};

on_every_database!(
    workers_that_race_for_the_same_runs_drive_each_once,
    a_worker_that_is_closed_gives_its_runs_back_after_the_step,
);

async fn workers_that_race_for_the_same_runs_drive_each_once<W: World>(world: W) {
    const RUNS: usize = 30;
    let saga = |world: &W| {
        Saga::<usize>::named("s")
            .durable(world.journal())
            .step("a", noting(world))
            .step("b", noting(world))
            .build()
            .unwrap()
    };
    let other = W::open(world.name()).await;
    let (one, two) = (saga(&world), saga(&other));
    for run in 0..RUNS {
        one.start(&run.to_string(), &run).await.unwrap();
    }
    let poll = Duration::from_millis(5);
    let worker = |saga: &DurableSaga<usize, W::Journal>| {
        saga.worker().concurrency(3).poll_interval(poll).start().unwrap()
    };
    let workers = [worker(&one), worker(&two)];
    let ended = || workers.iter().map(|worker| worker.report().complete).sum::<u64>();
    eventually("every run to end", async || ended() == RUNS as u64).await;
    for worker in &workers {
        worker.close().await;
        let report = worker.report();
        assert_eq!((report.lost, report.given_back, report.restarts), (0, 0, 0), "{report:?}");
    }
    let effects = world.effects().await;
    assert_eq!(effects.len(), 2 * RUNS, "a step ran twice");
    assert_eq!(effects.iter().filter(|effect| *effect == "do a").count(), RUNS);
}

async fn a_worker_that_is_closed_gives_its_runs_back_after_the_step<W: World>(world: W) {
    let gate = Arc::new(Semaphore::new(0));
    let (inner, held) = (world.clone(), Arc::clone(&gate));
    let saga = Saga::<u32>::named("s")
        .durable(world.journal())
        .step("a", move |_: u32| {
            let (world, gate) = (inner.clone(), Arc::clone(&held));
            async move {
                world.effect("begun a").await?;
                gate.acquire().await.map_err(StepError::fatal)?.forget();
                Ok::<_, StepError>(world.effect("do a").await?)
            }
        })
        .step("b", noting(&world))
        .build()
        .unwrap();
    let worker = saga.worker().start().unwrap();
    let id = saga.start("order-1", &1).await.unwrap().id;
    eventually("the step to begin", async || !world.effects().await.is_empty()).await;

    let mut closing = std::pin::pin!(worker.close());
    assert!(futures::poll!(&mut closing).is_pending(), "it left the step alone");
    gate.add_permits(1);
    soon("the worker to close", closing).await;
    assert!(!worker.is_running());
    // A claim under way may have taken it once more, and given it back untouched.
    let report = worker.report();
    assert!(report.given_back >= 1 && report.complete == 0, "{report:?}");
    assert_eq!(world.effects().await, ["begun a", "do a"], "another step was begun");
    assert_eq!(saga.status(id).await.unwrap().unwrap().completed(), ["a"]);

    // At once: nobody has to wait for the lease to end.
    assert_eq!(saga.resume_all().await.unwrap().complete, 1);
    assert_eq!(world.effects().await, ["begun a", "do a", "do b"]);
}

/// One step holds the only connection of the pool while the journal of the other wants it.
#[tokio::test]
async fn a_step_that_holds_a_connection_does_not_starve_the_journal() {
    run(|world: Lite| async move {
        let narrow = world.with_connections(1).await;
        let held = Arc::new(Semaphore::new(0));
        let (is_held, holder) = (Arc::clone(&held), narrow.clone());
        let group = ParallelSteps::new()
            .step("quick", move |_: u32| {
                let held = Arc::clone(&is_held);
                async move {
                    held.acquire().await.map_err(StepError::fatal)?.forget();
                    Ok::<_, StepError>(|_: &mut u32| {})
                }
            })
            .step("slow", move |_: u32| {
                let (held, world) = (Arc::clone(&held), holder.clone());
                async move {
                    let connection = world.acquire().await?;
                    held.add_permits(1);
                    // The end of the other reaches the journal meanwhile.
                    for _ in 0..100 {
                        tokio::task::yield_now().await;
                    }
                    drop(connection);
                    Ok::<_, StepError>(|_: &mut u32| {})
                }
            });
        let saga =
            Saga::<u32>::named("s").durable(narrow.journal()).parallel(group).build().unwrap();
        let outcome = soon("the run to end", saga.run("order-1", &1)).await.unwrap();
        assert!(outcome.is_complete());
    })
    .await;
}

// --- a frozen process ----------------------------------------------------------------------------

const LEASE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_changes_nothing_when_it_wakes_on_postgres() {
    run(a_frozen_worker_changes_nothing::<Pg>).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_changes_nothing_when_it_wakes_on_mysql() {
    run(a_frozen_worker_changes_nothing::<super::world::Maria>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_changes_nothing_when_it_wakes_on_sqlite() {
    run(a_frozen_worker_changes_nothing::<Lite>).await;
}

/// A saga whose first step, in the child, does not end before the gate is open.
fn gated<W: World>(world: &W, gate: Option<PathBuf>) -> DurableSaga<u32, W::Journal> {
    let (inner, gate) = (world.clone(), Arc::new(gate));
    Saga::<u32>::named("s")
        .durable(world.journal())
        .lease(LEASE)
        .step("a", move |_: u32| {
            let (world, gate) = (inner.clone(), Arc::clone(&gate));
            async move {
                world.effect("do a").await?;
                let mut look = tokio::time::interval(Duration::from_millis(5));
                while gate.as_ref().as_ref().is_some_and(|gate| !gate.exists()) {
                    look.tick().await;
                }
                Ok::<_, StepError>(())
            }
        })
        .step("b", noting(world))
        .build()
        .unwrap()
}

async fn a_frozen_worker_changes_nothing<W: World>(world: W) {
    let gate = Gate::new(world.name());
    let saga = gated(&world, None);
    let id = saga.start("order-1", &1).await.unwrap().id;
    let mut owner = spawn::<W>(world.name(), &gate.0);
    eventually("the child to begin the step", async || world.effects().await == ["do a"]).await;
    signal(&owner, "STOP");

    let worker = saga.worker().poll_interval(Duration::from_millis(20)).start().unwrap();
    eventually("the takeover", async || worker.report().complete == 1).await;
    worker.close().await;
    let journal = "SELECT kind FROM {p}saga_journal ORDER BY run_id, seq";
    let before = world.texts(journal).await;

    std::fs::write(&gate.0, "").unwrap();
    signal(&owner, "CONT");
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let told = tokio::task::spawn_blocking(move || {
        lines.map_while(Result::ok).find(|line| line.starts_with("lost "))
    });
    let told = soon("the frozen worker to notice", told).await.unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();

    assert_eq!(told.as_deref(), Some("lost 1"));
    assert_eq!(world.texts(journal).await, before, "a late write changed the journal");
    assert_eq!(world.effects().await, ["do a", "do a", "do b"]);
    assert_eq!(saga.status(id).await.unwrap().unwrap().status(), RunStatus::Complete);
}

fn signal(child: &Child, signal: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A file that lets the child's step end once it is there.
struct Gate(PathBuf);

impl Gate {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("acemq-test-{name}.gate")))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn spawn<W: World>(name: &str, gate: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["durable::racing::child", "--exact", "--ignored", "--nocapture"])
        .env("ACEMQ_CHILD", format!("{} {name} {}", W::NAME, gate.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the worker process of the tests above, which start it by its name"]
async fn child() {
    let order = std::env::var("ACEMQ_CHILD").expect("only the tests above start this");
    let words: Vec<&str> = order.split(' ').collect();
    let [database, name, gate] = words[..] else { panic!("{order}") };
    match database {
        "postgres" => work(Pg::open(name).await, gate.into()).await,
        #[cfg(feature = "mysql")]
        "mysql" => work(super::world::Maria::open(name).await, gate.into()).await,
        _ => work(Lite::open(name).await, gate.into()).await,
    }
}

async fn work<W: World>(world: W, gate: PathBuf) {
    let worker = gated(&world, Some(gate)).worker().start().unwrap();
    eventually("the loss", async || worker.report().lost == 1).await;
    println!("\nlost {}", worker.report().lost);
    std::future::pending::<()>().await;
}
