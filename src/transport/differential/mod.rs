//! The memory broker against RabbitMQ: the same script on both, the same results from both.
//!
//! A [`script`] declares, binds, publishes, consumes, settles, waits for expiry, cancels, closes
//! and deletes. After each step both brokers come to rest, and what can be seen of them must be the
//! same: the answer to the step, every delivery so far with its properties, the length and the
//! consumers of each queue. The memory broker goes first and says what is to be seen; RabbitMQ
//! gets time to show it. So nothing depends on how fast either is.
//!
//! `ACEMQ_DIFFERENTIAL_SEEDS` is the number of random scripts (40 by default), or a range such as
//! `500..1500`; for every twentieth, random topic patterns and header tables are compared as well,
//! over a thousand pairs each. A script that shows a difference is printed with its seed.
//!
//! Left out, because RabbitMQ itself answers it now one way and now another: the moment from which
//! a quorum queue with `reject-publish` refuses or takes messages again, which its publishers learn
//! a little later; the order in which two queues dead-letter into a third; and the order in which a
//! quorum queue sends what expired within a few milliseconds. And one thing that is not modelled: a
//! classic queue with priorities does not notice at once that a new message at its head expired.
//! Classic queues with a single active consumer are in the cases alone: RabbitMQ 3.10.8 crashes one
//! that gets a message while it waits to turn to its next consumer (seed 1686 found it).

mod actor;
mod cases;
mod random;
mod script;

use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};

use self::{
    actor::Actor,
    script::{Script, Step},
};
use super::{
    Transport,
    memory::MemoryTransport,
    rabbitmq::{Certificates, RabbitMqTransport},
};

/// How long RabbitMQ may take to show what is expected of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a script may take in all, on a machine with a lot else to do.
const LIMIT: Duration = Duration::from_mins(4);

/// How many scripts run at a time.
const AT_ONCE: usize = 4;

fn rabbitmq() -> RabbitMqTransport {
    let url = std::env::var("ACEMQ_TEST_AMQP")
        .unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".to_owned());
    RabbitMqTransport::new(&url, Duration::from_secs(30), 100, Certificates::default()).unwrap()
}

/// Runs a script on both brokers. The error says where they differ.
async fn compare(script: &Script) -> Result<(), String> {
    let memory = MemoryTransport::private();
    let broker = memory.broker();
    let rabbit = rabbitmq();
    let mut expected = Actor::on(memory.dial("differential").await.unwrap());
    let real = rabbit.dial("differential").await.expect("the broker of the tests is up");
    let mut found = Actor::on(real);

    let mut result = Ok(());
    for (number, step) in script.all_steps().into_iter().enumerate() {
        let wanted = expected.act(&step).await;
        // What expires does so on both before anything else happens, also where nobody sees it.
        let started = Instant::now();
        let mut rounds = 0;
        while let Some(next) = broker.next_expiry().filter(|at| *at < Instant::now() + SOON) {
            tokio::time::sleep_until(next).await;
            sleep(Duration::from_millis(2)).await;
            rounds += 1;
            if rounds > ENDLESS {
                break;
            }
        }
        if rounds > ENDLESS {
            break;
        }
        let pause = started.elapsed();
        let answer = found.act(&step).await;
        if pause > Duration::from_millis(2) {
            sleep(pause).await;
        }
        let outcome = if wanted == answer {
            let state = expected.observe(script).await;
            let seen = until_seen(&mut found, script, &state).await;
            if pause > Duration::from_millis(2) {
                sleep(BEHIND).await;
            }
            seen
        } else {
            Err(format!("memory answers   {wanted}\nRabbitMQ answers {answer}"))
        };
        if let Err(difference) = outcome {
            result = Err(format!("step {number}, {step:?}:\n{difference}\n\nin {script}"));
            break;
        }
    }
    clean_up(script, found, &rabbit).await;
    result
}

/// Nothing in a script expires later than this and sooner than its end.
const SOON: Duration = Duration::from_secs(10);

/// After so many expiries in one step a message goes round for ever, as RabbitMQ lets one that was
/// rejected before: there is no rest to compare, and the script ends.
const ENDLESS: u32 = 100;

/// What came to a queue last, and waits behind others, expires in this time.
const BEHIND: Duration = Duration::from_millis(script::SHORT_MS.unsigned_abs() + 5);

/// Waits until RabbitMQ shows a state.
async fn until_seen(found: &mut Actor, script: &Script, wanted: &[String]) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    loop {
        let state = found.observe(script).await;
        if state == wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            let differing = wanted.iter().zip(&state).filter(|(wanted, found)| wanted != found);
            let lines = differing.map(|(w, f)| format!("memory shows   {w}\nRabbitMQ shows {f}"));
            return Err(lines.collect::<Vec<_>>().join("\n"));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Removes everything that a script made on RabbitMQ.
async fn clean_up(script: &Script, found: Actor, rabbit: &RabbitMqTransport) {
    found.close().await;
    let link = rabbit.dial("differential").await.unwrap();
    for queue in script.queue_names() {
        link.delete_queue(&queue).await.unwrap();
    }
    link.close().await;
    rabbit.delete_exchanges(script.exchanges.iter().map(|exchange| exchange.name.as_str())).await;
}

/// The random scripts to run.
fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("ACEMQ_DIFFERENTIAL_SEEDS").unwrap_or_else(|_| "40".to_owned());
    let number =
        |text: &str| text.trim().parse().expect("ACEMQ_DIFFERENTIAL_SEEDS is `n` or `m..n`");
    match wanted.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&wanted),
    }
}

/// Runs scripts, some at a time, and shows the differences of all.
async fn compare_all(scripts: Vec<Script>) {
    let runs = scripts.into_iter().map(|script| async move {
        let title = script.title.clone();
        let run = timeout(LIMIT, compare(&script)).await;
        run.unwrap_or_else(|_| Err(format!("{title} does not end")))
    });
    let all: Vec<_> = futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
    let differences: Vec<_> = all.into_iter().filter_map(Result::err).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n----\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_scripts_have_the_same_results_on_both_brokers() {
    compare_all(seeds().map(random::script).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_once_differed_have_the_same_results_on_both_brokers() {
    compare_all(cases::all()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_topic_patterns_and_keys_and_header_tables_lead_to_the_same_queues() {
    let some = seeds().step_by(20);
    let scripts = some.flat_map(|seed| [random::topic_routing(seed), random::header_routing(seed)]);
    compare_all(scripts.collect()).await;
}

#[test]
fn a_script_is_the_same_for_the_same_seed() {
    let of = |seed: u64| {
        let script = random::script(seed);
        format!("{script}").replace(&script.prefix, "")
    };
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
    let steps: usize = (0..50).map(|seed| random::script(seed).steps.len()).sum();
    assert!(steps > 500 && matches!(random::script(1).all_steps()[0], Step::Declare(_)));
}
