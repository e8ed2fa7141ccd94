//! A consumer process that is killed between any two steps, again and again.
//!
//! The child kills itself inside its handler (before its effect, after it, after the commit or
//! confirm) and is killed from outside at random moments, which reaches the steps between. What
//! has to hold: with a transaction each message has exactly one effect; with a claim at least one,
//! and none is lost. `ACEMQ_KILLS` sets the kills of each test; the short form is 30.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use acemq::{
    AceMq, Claim, IdempotencyStore, Message, Queue, Result, RetryPolicy, Topology, Work, WorkResult,
};
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::{
    bank::{Bank, Lite, Pg, unique},
    support::{Broker, Fixture, amqp_url, eventually, run},
};

/// Which kind of consumer the child runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Transaction,
    Batch,
    Claim,
}

fn kills() -> usize {
    std::env::var("ACEMQ_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(30)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_transaction_on_postgres_each_message_has_exactly_one_effect() {
    kill_and_count::<Pg>("postgres", Form::Transaction).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_batch_on_postgres_each_message_has_exactly_one_effect() {
    kill_and_count::<Pg>("postgres", Form::Batch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_transaction_on_sqlite_each_message_has_exactly_one_effect() {
    kill_and_count::<Lite>("sqlite", Form::Transaction).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_batch_on_mysql_each_message_has_exactly_one_effect() {
    kill_and_count::<crate::bank::Maria>("mysql", Form::Batch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_claim_on_postgres_no_message_is_lost() {
    kill_and_count::<Pg>("postgres", Form::Claim).await;
}

async fn kill_and_count<B: Bank>(database: &'static str, form: Form) {
    let bank = B::open(&unique()).await;
    bank.create().await;
    run(Broker::RabbitMq, |fx| {
        let bank = bank.clone();
        async move { rounds(&fx, &bank, database, form).await }
    })
    .await;
    bank.drop().await;
}

async fn rounds<B: Bank>(fx: &Fixture, bank: &B, database: &str, form: Form) {
    let queue = fx.name("stock");
    // A kill counts as a delivery for all that the child had at hand, and after 20 RabbitMQ 4 would
    // dead-letter them. What this is about is that none is lost or repeated however often.
    let patient = Queue::new(queue.as_str()).delivery_limit(10_000);
    fx.mq.declare(&Topology::new().queue(patient)).await.unwrap();
    let publisher = fx.mq.publisher::<u32>("", queue.as_str());
    let mut random = fastrand::Rng::with_seed(7);
    let mut sent = 0;
    let mut killed_itself = 0;
    for round in 0..kills() {
        assert_eq!(publisher.send_all(&[0; 20]).await.confirmed(), 20);
        sent += 20;
        // In turn: at a chosen point in the handler, or anywhere from outside.
        let from_inside = round % 2 == 0;
        let seed = if from_inside { random.u64(1..) } else { 0 };
        let mut child = spawn(database, form, bank.name(), &queue, seed);
        let patience = if from_inside { 2000 } else { random.u64(30..300) };
        let patience = Duration::from_millis(patience);
        let end = tokio::time::timeout(patience, until_exit(&mut child)).await;
        killed_itself += usize::from(end.is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut child = spawn(database, form, bank.name(), &queue, 0);
    eventually("the last child to handle everything", async || {
        bank.effects().await.1 == sent && fx.mq.queue_length(&queue).await.unwrap() == Some(0)
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    let (effects, different) = bank.effects().await;
    println!(
        "{form:?} on {database}: {sent} messages, {} kills ({killed_itself} from inside), \
         {effects} effects",
        kills()
    );
    assert_eq!(different, sent, "messages were lost");
    assert!(killed_itself > 0, "no child reached its handler");
    match form {
        Form::Transaction | Form::Batch => assert_eq!(effects, sent, "effects were repeated"),
        Form::Claim => assert!(effects >= sent),
    }
    for suffix in ["dlq", "parked"] {
        let aside = fx.mq.queue_length(&format!("{queue}.{suffix}")).await.unwrap();
        assert_eq!(aside, Some(0), "{suffix}");
    }
}

async fn until_exit(child: &mut Child) {
    let mut look = tokio::time::interval(Duration::from_millis(5));
    while child.try_wait().unwrap().is_none() {
        look.tick().await;
    }
}

fn spawn(database: &str, form: Form, bank: &str, queue: &str, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["kills::child", "--exact", "--ignored", "--nocapture"])
        .env("ACEMQ_CHILD", format!("{database} {form:?} {bank} {queue} {seed}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child process of the kill tests, which start it by its name"]
async fn child() {
    let order = std::env::var("ACEMQ_CHILD").expect("only the kill tests start this");
    let words: Vec<&str> = order.split(' ').collect();
    let [database, form, bank, queue, seed] = words[..] else { panic!("{order}") };
    let dice = Dice::new(seed.parse().unwrap());
    match database {
        "postgres" => consume(Pg::open(bank).await, form, queue, dice).await,
        #[cfg(feature = "mysql")]
        "mysql" => consume(crate::bank::Maria::open(bank).await, form, queue, dice).await,
        _ => consume(Lite::open(bank).await, form, queue, dice).await,
    }
}

async fn consume<B: Bank>(bank: B, form: &str, queue: &str, dice: Dice) {
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let consumer = mq
        .consumer::<u32>(queue)
        .concurrency(2)
        // A claim that a dead process left behind holds the message up until its lease ends.
        .retry(RetryPolicy::fixed(100, Duration::from_millis(20)));
    let _running = if form == "Claim" {
        let store = Deadly { inner: Arc::new(bank.store()), dice: dice.clone() };
        consumer
            .idempotent(store)
            .start(move |message: Message<u32>| {
                let (bank, dice) = (bank.clone(), dice.clone());
                async move {
                    dice.maybe_die();
                    bank.effect_now(message.id()).await?;
                    dice.maybe_die();
                    Ok(())
                }
            })
            .await
    } else {
        let batch = if form == "Batch" { 4 } else { 1 };
        consumer
            .transactional(bank.store())
            .batched(batch)
            .start(move |work| {
                let (bank, dice) = (bank.clone(), dice.clone());
                async move { work_once(work, &bank, &dice).await }
            })
            .await
    }
    .unwrap();
    std::future::pending::<()>().await;
}

async fn work_once<B: Bank>(mut work: Work<u32, B::D>, bank: &B, dice: &Dice) -> WorkResult {
    dice.maybe_die();
    let id = work.message().id().to_owned();
    B::effect(work.tx(), bank.name(), &id).await?;
    dice.maybe_die();
    let receipt = work.commit().await?;
    dice.maybe_die();
    Ok(receipt)
}

/// Kills the process now and then; seed 0 never does.
#[derive(Clone)]
struct Dice(Arc<std::sync::Mutex<Option<fastrand::Rng>>>);

impl Dice {
    fn new(seed: u64) -> Self {
        let random = (seed != 0).then(|| fastrand::Rng::with_seed(seed));
        Self(Arc::new(std::sync::Mutex::new(random)))
    }

    fn maybe_die(&self) {
        if let Some(random) = &mut *self.0.lock().unwrap()
            && random.u8(..8) == 0
        {
            std::process::abort();
        }
    }
}

/// A store whose process may die around each claim and confirm. Its leases are short, so that the
/// claims of dead processes end while the test runs.
struct Deadly<S> {
    inner: Arc<S>,
    dice: Dice,
}

impl<S: IdempotencyStore> IdempotencyStore for Deadly<S> {
    fn claim_lease(&self) -> Duration {
        self.inner.claim_lease()
    }
    fn try_claim<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<Claim>> {
        Box::pin(async move {
            let claim = self.inner.try_claim(consumer, id).await;
            self.dice.maybe_die();
            claim
        })
    }
    fn confirm<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let confirmed = self.inner.confirm(c, id, token).await;
            self.dice.maybe_die();
            confirmed
        })
    }
    fn release<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.inner.release(c, id, token)
    }
    fn renew<'a>(&'a self, c: &'a str, id: &'a str, token: Uuid) -> BoxFuture<'a, Result<bool>> {
        self.inner.renew(c, id, token)
    }
    fn forget<'a>(&'a self, consumer: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.inner.forget(consumer, id)
    }
    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64>> {
        self.inner.purge(limit)
    }
}
