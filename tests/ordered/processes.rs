//! Consumer processes that are killed and frozen, connections that are cut: order per key holds
//! among first effects, and nothing is lost.
//!
//! `ACEMQ_ORDERED_MESSAGES` sets how many messages (default 4,000; the long form is 1,000,000),
//! `ACEMQ_SEED` the seed.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use acemq::{AceMq, Message};
use tokio::sync::mpsc;

use crate::{
    Event, event, name, ordered,
    support::{Broker, amqp_url, run, soon},
};

const KEYS: u64 = 50;
const PROCESSES: usize = 4;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// A consumer in a process of its own, which prints what it handles; dropping it kills the process.
struct Consuming(Child);

impl Consuming {
    fn spawn(name: &str, effects: mpsc::UnboundedSender<(String, u64)>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::child", "--exact", "--ignored", "--nocapture"])
            .env("ACEMQ_CHILD", name)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let effect = line.strip_prefix("effect ").and_then(|text| text.split_once(' '));
                let Some((key, number)) = effect else { continue };
                // A line that a kill has cut off is no effect that anybody saw.
                if let Ok(number) = number.trim_end_matches('.').parse()
                    && line.ends_with('.')
                {
                    let _ = effects.send((key.to_owned(), number));
                }
            }
        });
        Self(child)
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_consumers_lose_nothing_and_keep_the_order_of_each_key() {
    run(Broker::RabbitMq, |fx| async move {
        let messages = setting("ACEMQ_ORDERED_MESSAGES", 4000);
        let mut random = fastrand::Rng::with_seed(setting("ACEMQ_SEED", 7));
        let name = name(&fx);
        let sending = ordered(&fx.mq, &name).declare().await.unwrap();
        let (effects, mut seen) = mpsc::unbounded_channel();
        let mut processes: Vec<Consuming> =
            (0..PROCESSES).map(|_| Consuming::spawn(&name, effects.clone())).collect();
        let sender = tokio::spawn(async move {
            // Each key by one task, so that its order is that of the sends.
            let keys = (0..8).map(|lane| {
                let sending = sending.clone();
                tokio::spawn(async move {
                    for number in (0..messages).filter(|number| number % KEYS % 8 == lane) {
                        let event = event(format!("key{}", number % KEYS), number / KEYS + 1);
                        sending.send(&event).await.unwrap();
                    }
                })
            });
            for sent in keys.collect::<Vec<_>>() {
                sent.await.unwrap();
            }
        });
        let mut last: HashMap<String, u64> = HashMap::new();
        let (mut first, mut repeated, mut kills) = (0, 0, 0);
        while first < messages {
            let (key, number) = soon("an effect", seen.recv()).await.unwrap();
            let last = last.entry(key.clone()).or_default();
            if number <= *last {
                repeated += 1;
                continue;
            }
            assert_eq!(number, *last + 1, "{key}: an inversion or a loss");
            *last = number;
            first += 1;
            if first >= messages * (kills + 1) / 12 && kills < 10 {
                kills += 1;
                processes[random.usize(..PROCESSES)] = Consuming::spawn(&name, effects.clone());
            }
        }
        sender.await.unwrap();
        println!("{messages} messages, {kills} kills: {repeated} repeated, 0 inversions");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the consumer process of the kill test, which starts it by its name"]
async fn child() {
    let name = std::env::var("ACEMQ_CHILD").expect("only the kill test starts this");
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let _queue = ordered(&mq, &name)
        .prefetch(20)
        .concurrency_per_partition(4)
        .consume(|event: Message<Event>| async move {
            use std::io::Write;

            let Event { key, number } = event.into_payload();
            // One write, and flushed before the acknowledgement: the effect is seen, or it is none.
            let mut out = std::io::stdout().lock();
            out.write_all(format!("\neffect {key} {number}.\n").as_bytes())?;
            out.flush()?;
            Ok(())
        })
        .await
        .unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_lose_nothing_and_keep_the_order_of_each_key() {
    use acemq::testing::MemoryBroker;

    run(Broker::Memory, |fx| async move {
        let messages = 2000;
        let name = name(&fx);
        let broker = MemoryBroker::of(&fx.url);
        let (effects, mut seen) = mpsc::unbounded_channel();
        let mut consuming = Vec::new();
        for _ in 0..2 {
            let (mq, effects) = (fx.another().await, effects.clone());
            let queue = ordered(&mq, &name)
                .prefetch(20)
                .concurrency_per_partition(4)
                .consume(move |event: Message<Event>| {
                    let effects = effects.clone();
                    async move {
                        tokio::task::yield_now().await;
                        Ok(effects.send(event.into_payload())?)
                    }
                })
                .await
                .unwrap();
            consuming.push((mq, queue));
        }
        let sending = ordered(&fx.mq, &name).declare().await.unwrap();
        let sender = tokio::spawn(async move {
            for number in 0..messages {
                let event = event(format!("key{}", number % KEYS), number / KEYS + 1);
                // Sent again until it is confirmed: a repetition, never an inversion.
                while sending.send(&event).await.is_err() {}
            }
        });
        let mut last: HashMap<String, u64> = HashMap::new();
        let (mut first, mut cuts) = (0, 0);
        while first < messages {
            let event = soon("an effect", seen.recv()).await.unwrap();
            let last = last.entry(event.key).or_default();
            if event.number > *last {
                assert_eq!(event.number, *last + 1, "an inversion or a loss");
                *last = event.number;
                first += 1;
            }
            if first >= messages * (cuts + 1) / 12 && cuts < 10 {
                cuts += 1;
                broker.disconnect_all("cut");
            }
        }
        sender.await.unwrap();
        for (mq, _) in consuming {
            let _ = mq.close().await;
        }
    })
    .await;
}
