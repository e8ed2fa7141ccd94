//! The ledger: what was sent, what was confirmed, what arrived, while connections break.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use acemq::{AceMq, ConnectionState, Consumer, Envelope, Error, Message, Queue, Result, Topology};
use tokio::sync::Semaphore;

use super::{eventually, record_states, until_ready};

const PUBLISHERS: usize = 4;
/// Publishes that one publisher has in flight.
const PIPELINED: usize = 8;
const CONSUMERS: usize = 2;
const CONCURRENCY: usize = 4;
/// Messages between two cuts, at random up to these.
const MESSAGES: u64 = 150;

/// Messages that may wait to be handled, so that publishers do not run away from consumers.
const BACKLOG: usize = 500;

/// What happened to each message, by id.
struct Ledger {
    sent: Mutex<HashMap<String, Result<()>>>,
    handled: Mutex<HashMap<String, usize>>,
    room: Semaphore,
}

impl Ledger {
    fn new() -> Self {
        let room = Semaphore::new(BACKLOG);
        Self { sent: Mutex::default(), handled: Mutex::default(), room }
    }

    fn handled(&self) -> u64 {
        self.handled.lock().unwrap().values().map(|times| *times as u64).sum()
    }

    /// Ids that were confirmed and never arrived.
    fn lost(&self) -> Vec<String> {
        let (sent, handled) = (self.sent.lock().unwrap(), self.handled.lock().unwrap());
        let confirmed = sent.iter().filter(|(_, result)| result.is_ok());
        confirmed.filter(|(id, _)| !handled.contains_key(*id)).map(|(id, _)| id.clone()).collect()
    }

    fn check(&self) {
        assert_eq!(self.lost(), Vec::<String>::new(), "confirmed and lost");
        let (sent, handled) = (self.sent.lock().unwrap(), self.handled.lock().unwrap());
        for (id, result) in &*sent {
            let Err(error) = result else { continue };
            let nothing_sent = matches!(error, Error::Disconnected { .. } | Error::Blocked { .. });
            assert!(nothing_sent || error.may_have_been_published(), "{id}: {error:?}");
            // A cut ends what is in flight at once; nobody waits for a limit of half a minute.
            assert!(!matches!(error, Error::ConfirmTimeout { .. }), "{id}: {error:?}");
            assert!(!(nothing_sent && handled.contains_key(id)), "{id} was sent: {error:?}");
        }
        assert!(handled.keys().all(|id| sent.contains_key(id)), "a message out of nowhere");
    }

    fn report(&self, consumers: &[Consumer]) -> String {
        let (sent, handled) = (self.sent.lock().unwrap(), self.handled.lock().unwrap());
        let failed = sent.values().filter(|result| result.is_err()).count();
        let twice: usize = handled.values().map(|times| times - 1).sum();
        let late: u64 = consumers.iter().map(|consumer| consumer.stats().settle_failed).sum();
        format!(
            "{} sent, {failed} failed, {} arrived, {twice} duplicates, {late} settled too late",
            sent.len(),
            handled.len(),
        )
    }
}

/// Sends one message after the other, some at a time, until there is no more room.
async fn publish(mq: AceMq, queue: String, name: usize, ledger: Arc<Ledger>) {
    let publisher = mq.publisher::<usize>("", queue);
    let mut next = 0;
    while let Ok(room) = ledger.room.acquire_many(PIPELINED as u32).await {
        let batch = (next..next + PIPELINED).map(|number| {
            let publisher = &publisher;
            async move {
                let id = format!("{name}-{number}");
                let envelope = Envelope::new().with_id(id.as_str());
                (id, publisher.send_with(&number, envelope).await.map(drop))
            }
        });
        let answered = futures::future::join_all(batch).await;
        // What arrives makes room again.
        room.forget();
        ledger.room.add_permits(answered.iter().filter(|(_, result)| result.is_err()).count());
        ledger.sent.lock().unwrap().extend(answered);
        next += PIPELINED;
    }
}

async fn consume(mq: &AceMq, queue: &str, ledger: &Arc<Ledger>) -> Consumer {
    let ledger = Arc::clone(ledger);
    let handler = move |message: Message<usize>| {
        let ledger = Arc::clone(&ledger);
        async move {
            tokio::task::yield_now().await;
            *ledger.handled.lock().unwrap().entry(message.id().to_owned()).or_default() += 1;
            ledger.room.add_permits(1);
            Ok(())
        }
    };
    let consumer = mq.consumer::<usize>(queue).prefetch(20).concurrency(CONCURRENCY);
    consumer.start(handler).await.unwrap()
}

/// Runs publishers and consumers, breaks what is between them again and again, and balances the
/// books. `break_it` returns when the loss is known to the handle, or is over again.
pub async fn keep_the_books(mq: &AceMq, queue: &str, rounds: usize, break_it: impl AsyncFn()) {
    let seed = std::env::var("ACEMQ_FAULTS_SEED").map_or(7, |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    mq.declare(&Topology::new().queue(Queue::new(queue))).await.unwrap();
    let ledger = Arc::new(Ledger::new());
    let states = record_states(mq);
    let mut consumers = Vec::new();
    for _ in 0..CONSUMERS {
        consumers.push(consume(mq, queue, &ledger).await);
    }
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|name| publish(mq.clone(), queue.to_owned(), name, ledger.clone()))
        .map(tokio::spawn)
        .collect();

    for round in 0..rounds {
        let goal = ledger.handled() + random.u64(20..MESSAGES);
        let what = format!("messages to flow in round {round}");
        eventually(&what, async || ledger.handled() >= goal).await;
        break_it().await;
        until_ready(mq).await;
    }
    ledger.room.close();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    eventually("every confirmed message to arrive", async || ledger.lost().is_empty()).await;
    eventually("the queue to be empty and all to be settled", async || {
        let settled = consumers.iter().all(|consumer| {
            let stats = consumer.stats();
            stats.received == stats.acked + stats.settle_failed
        });
        settled && mq.queue_length(queue).await.unwrap() == Some(0)
    })
    .await;
    println!("ledger: {}", ledger.report(&consumers));
    ledger.check();
    let is_a_loss = |state: &&ConnectionState| matches!(state, ConnectionState::Reconnecting(_));
    let losses = states.lock().unwrap().iter().filter(is_a_loss).count();
    assert!(losses >= rounds, "{losses} losses seen of {rounds}");
}
