//! A relay that is frozen between its publish and its mark, until another has taken over.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use acemq::{AceMq, OutboxRecord, OutboxRelay, OutboxStore, OutboxTarget, Result};

use crate::{
    ledger::Ledger,
    support::{Broker, amqp_url, eventually, soon},
    world::{Lite, Pg, World, run},
};

const LEASE: Duration = Duration::from_secs(1);
const RECORDS: usize = 20;
const KEYS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_marks_of_a_frozen_relay_change_nothing_on_postgres() {
    late_marks_change_nothing::<Pg>(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_marks_of_a_frozen_relay_change_nothing_on_sqlite() {
    late_marks_change_nothing::<Lite>(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_frozen_within_runs_of_keys_publishes_none_of_the_rest_on_postgres() {
    late_marks_change_nothing::<Pg>(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_frozen_within_runs_of_keys_publishes_none_of_the_rest_on_sqlite() {
    late_marks_change_nothing::<Lite>(true).await;
}

/// With keys, the frozen relay has published the first record of each and holds the rest.
async fn late_marks_change_nothing<W: World>(keyed: bool) {
    let in_flight = if keyed { KEYS } else { RECORDS };
    run(Broker::RabbitMq, |fx, world: W| async move {
        let queue = fx.queue("orders").await;
        let mut ledger = Ledger::of(&fx.mq, &queue).await;
        let text = |n| format!("key{}:{n}", n % KEYS);
        let committed: Vec<String> = (0..RECORDS).map(text).collect();
        let record = |text: &String| {
            let record = OutboxRecord::bytes("", &*queue, "text/plain", text.clone());
            let key = text.split(':').next().filter(|_| keyed).unwrap_or_default();
            record.ordering_key(key)
        };
        world.add(committed.iter().map(record).collect()).await;

        let gate = Gate::new(world.name());
        let mut owner = spawn::<W>(world.name(), &gate.0, in_flight);
        ledger.until_length(in_flight).await;
        signal(&owner, "STOP");

        let relay = OutboxRelay::new(&fx.mq, world.outbox())
            .lease(LEASE)
            .poll_interval(Duration::from_millis(20))
            .start();
        eventually("the takeover", async || relay.published() == RECORDS as u64).await;
        relay.close().await;
        let marks = "SELECT published_at || ' ' || attempts FROM {outbox} ORDER BY seq";
        let before = world.texts(marks).await;

        gate.open();
        signal(&owner, "CONT");
        let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        let told = tokio::task::spawn_blocking(move || {
            lines.map_while(std::result::Result::ok).find(|line| line.starts_with("lost "))
        });
        let told = soon("the frozen relay to notice", told).await.unwrap();
        owner.kill().unwrap();
        owner.wait().unwrap();

        assert_eq!(told, Some(format!("lost {in_flight}")));
        assert_eq!(world.texts(marks).await, before, "a late mark changed a row");
        assert_eq!(world.outbox().pending_count().await.unwrap(), 0);
        // Published is not yet arrived.
        eventually("every message to come, and those in flight twice", async || {
            let audit = ledger.audit(&committed);
            (audit.lost, audit.duplicates) == (0, in_flight)
        })
        .await;
        let audit = ledger.audit(&committed);
        assert_eq!((audit.lost, audit.duplicates, audit.renamed), (0, in_flight, 0));
        assert!(!keyed || audit.inversions == 0, "{audit:?}");
    })
    .await;
}

fn signal(child: &Child, signal: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A file that lets the child's publishes return once it is there.
struct Gate(PathBuf);

impl Gate {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("acemq-test-{name}.gate")))
    }

    fn open(&self) {
        std::fs::write(&self.0, "").unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn spawn<W: World>(name: &str, gate: &Path, in_flight: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["frozen::child", "--exact", "--ignored", "--nocapture"])
        .env("ACEMQ_CHILD", format!("{} {name} {} {in_flight}", W::NAME, gate.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the relay process of the tests above, which start it by its name"]
async fn child() {
    let order = std::env::var("ACEMQ_CHILD").expect("only the tests above start this");
    let words: Vec<&str> = order.split(' ').collect();
    let [database, name, gate, in_flight] = words[..] else { panic!("{order}") };
    let in_flight = in_flight.parse().unwrap();
    match database {
        "postgres" => relay(Pg::open(name).await, gate.into(), in_flight).await,
        _ => relay(Lite::open(name).await, gate.into(), in_flight).await,
    }
}

async fn relay<W: World>(world: W, gate: PathBuf, in_flight: u64) {
    let target = Held { mq: AceMq::connect(amqp_url()).await.unwrap(), gate };
    let relay = OutboxRelay::new(&target, world.outbox()).lease(LEASE).start();
    eventually("the late marks", async || relay.lost() == in_flight).await;
    println!("\nlost {}", relay.lost());
    std::future::pending::<()>().await;
}

/// Publishes at once and says so only when the gate is open.
#[derive(Clone)]
struct Held {
    mq: AceMq,
    gate: PathBuf,
}

impl OutboxTarget for Held {
    async fn publish(&self, record: &OutboxRecord) -> Result<()> {
        self.mq.publish(record).await?;
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while !self.gate.exists() {
            look.tick().await;
        }
        Ok(())
    }
}
