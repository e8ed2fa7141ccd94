//! All patterns together, under faults.
//!
//! An order system of services in processes of their own stores orders in PostgreSQL and sends
//! them through every pattern, while processes are killed and frozen, connections are cut and
//! stalled, queues are deleted and, where the environment allows it, servers restarted. Then
//! everything is healed, and the books in the database must balance: nothing lost, nothing
//! invented, effects once and in order where that is promised.
//!
//! | Variable | Default | |
//! |---|---|---|
//! | `ACEMQ_FAULT_SECONDS` | 60 | how long there are faults |
//! | `ACEMQ_SEED` | by the clock | which faults, and when |
//! | `ACEMQ_FAULT_RESTARTS` | none | `broker`, `database` or both: only for servers of your own |
//! | `ACEMQ_FAULT_RESTART_DATABASE` | | the command that restarts the database |
//! | `ACEMQ_FAULT_RECOVERIES` | 40 | forced recoveries of the process in `leaks` |

#[path = "../support/mod.rs"]
mod support;

mod accounts;
mod books;
mod dead_letters;
mod faults;
mod leaks;
mod office;
mod processes;
mod saga;
mod shop;
mod steps;
mod system;

use std::time::Duration;

use books::Books;
use processes::Processes;
use system::{System, setting};

/// How long everything may take to come through once nothing is broken any more.
const PATIENCE: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_system_under_faults_keeps_its_books() {
    let seed = setting("ACEMQ_SEED").unwrap_or_else(|| fastrand::u64(..));
    let seconds = setting("ACEMQ_FAULT_SECONDS").unwrap_or(60);
    println!("ACEMQ_SEED={seed} ACEMQ_FAULT_SECONDS={seconds}");
    let system = System::create().await;
    let mut processes = Processes::start(&system).await;

    let random = fastrand::Rng::with_seed(seed);
    let told = faults::inject(&system, &mut processes, random, Duration::from_secs(seconds)).await;
    processes.stop_the_shop().await;
    let books = Books::balanced(&system, PATIENCE).await;
    // Also of second copies, which may wait on a rung.
    system.until_drained(PATIENCE).await;
    processes.stop_all().await;
    system.until_drained(PATIENCE).await;

    // Once more: what came after everything was there is a duplicate, and none may be where none
    // is promised.
    let books = books.read_again(&system).await;
    let dead = dead_letters::read(&system).await;
    println!("{told}\n{}", books.table());
    books.check(&processes);
    dead.check(&books);
    system.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a service of the order system, which the test starts by its name"]
async fn child() {
    processes::serve().await;
}
