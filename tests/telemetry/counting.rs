//! Metrics: each message counts once, as what became of it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use acemq::{
    HandlerError, MemoryIdempotencyStore, Message, ResultExt, RetryPolicy, telemetry::metric,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::Semaphore;

use crate::support::{eventually, soon};

/// The metrics of this thread, from now until it is dropped.
struct Recorded {
    snapshotter: Snapshotter,
    _guard: metrics::LocalRecorderGuard<'static>,
}

impl Recorded {
    fn start() -> Self {
        let recorder: &'static DebuggingRecorder = Box::leak(Box::new(DebuggingRecorder::new()));
        Self {
            snapshotter: recorder.snapshotter(),
            _guard: metrics::set_default_local_recorder(recorder),
        }
    }

    /// Every value by its name and tags; of a histogram, how many values it took.
    fn values(&self) -> BTreeMap<String, f64> {
        let snapshot = self.snapshotter.snapshot().into_vec();
        let values = snapshot.into_iter().map(|(key, _, _, value)| {
            let key = key.key();
            let tag = |name| key.labels().find(|label| label.key() == name);
            let tags = ["message.type", "outcome", "transport"].map(|name| {
                tag(name).map(|label| format!(" {}", label.value())).unwrap_or_default()
            });
            let value = match value {
                DebugValue::Counter(count) => f64::from(u32::try_from(count).unwrap()),
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(values) => f64::from(u32::try_from(values.len()).unwrap()),
            };
            (format!("{}{}", key.name(), tags.concat()), value)
        });
        values.collect()
    }
}

fn of(values: &BTreeMap<String, f64>, name: &str) -> BTreeMap<String, f64> {
    let of_name = values.iter().filter(|(key, _)| key.starts_with(name));
    of_name.map(|(key, value)| (key[name.len()..].trim().to_owned(), *value)).collect()
}

fn expected<const N: usize>(values: [(&str, f64); N]) -> BTreeMap<String, f64> {
    values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

on_both_brokers! {
    async fn each_publish_counts_once_by_its_outcome(fixture) {
        let recorded = Recorded::start();
        let queue = fixture.queue("published").await;
        let transport = match fixture.broker {
            crate::support::Broker::Memory => "memory",
            crate::support::Broker::RabbitMq => "rabbitmq",
        };
        let publisher = fixture.mq.publisher::<u32>("", queue.as_str());
        publisher.send(&1).await.unwrap();
        assert!(publisher.send_all(&[2, 3]).await.into_result().is_ok());
        let nowhere = fixture.name("nowhere");
        fixture.mq.publisher::<u32>("", nowhere.as_str()).send(&4).await.unwrap_err();
        let reserved = acemq::Envelope::of("kept").header("x-acemq-id", "forged");
        publisher.send_with(&5, reserved).await.unwrap_err();

        let values = recorded.values();
        let outcomes = [
            // Where no type was named it is the routing key.
            (format!("{queue} confirmed {transport}"), 3.0),
            (format!("kept refused {transport}"), 1.0),
            (format!("{nowhere} unroutable {transport}"), 1.0),
        ];
        assert_eq!(of(&values, metric::PUBLISH_TOTAL), BTreeMap::from(outcomes));
        assert_eq!(of(&values, metric::PUBLISH_DURATION).len(), 3);
    }

    async fn each_delivery_counts_once_as_what_was_settled(fixture) {
        let recorded = Recorded::start();
        let queue = fixture.queue("settled").await;
        let consumer = fixture
            .mq
            .consumer::<String>(queue.as_str())
            .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
            .idempotent(MemoryIdempotencyStore::new())
            .start(|message: Message<String>| async move {
                match message.payload().as_str() {
                    "fails" => Err(HandlerError::from(std::io::Error::other("no"))),
                    "rejected" => Err("no").reject(),
                    "parked" => Err("no").park(),
                    "panics" => panic!("no"),
                    _ => Ok(()),
                }
            })
            .await
            .unwrap();
        let publisher = fixture.mq.publisher::<String>("", queue.as_str());
        let typed = || acemq::Envelope::of("t");
        let twin = typed().with_id("twin");
        for envelope in [typed(), twin.clone(), twin] {
            publisher.send_with(&"handled".to_owned(), envelope).await.unwrap();
        }
        for payload in ["fails", "rejected", "parked", "panics"] {
            publisher.send_with(&payload.to_owned(), typed()).await.unwrap();
        }
        eventually("everything to be settled", async || {
            let stats = consumer.stats();
            stats.acked + stats.duplicates == 3 && stats.dead_lettered == 3 && stats.parked == 1
        })
        .await;
        soon("the close", consumer.close()).await;

        let values = recorded.values();
        assert_eq!(
            of(&values, metric::CONSUME_TOTAL),
            expected([("t acked", 3.0), ("t retried", 1.0), ("t dead_lettered", 3.0), ("t parked", 1.0)])
        );
        // A histogram's values are as many as the counter counts.
        assert_eq!(of(&values, metric::CONSUME_DURATION), of(&values, metric::CONSUME_TOTAL));
        assert_eq!(of(&values, metric::CONSUME_ATTEMPTS), expected([("", 8.0)]));
        assert_eq!(of(&values, metric::CONSUME_IN_FLIGHT), expected([("", 0.0)]));
        assert_eq!(of(&values, metric::RETRIED_TOTAL), expected([("", 1.0)]));
        assert_eq!(
            of(&values, metric::DEAD_LETTERED_TOTAL),
            expected([("dead_lettered", 3.0), ("parked", 1.0)])
        );
        let stats = consumer.stats();
        assert_eq!(stats.received, 8);
        assert_eq!(stats.returned + stats.settle_failed, 0);
    }

    async fn a_delivery_whose_handler_is_abandoned_counts_as_given_back(fixture) {
        let recorded = Recorded::start();
        let queue = fixture.queue("abandoned").await;
        let impatient =
            fixture.options().shutdown_timeout(Duration::from_millis(10)).connect().await.unwrap();
        let started = Arc::new(Semaphore::new(0));
        let running = Arc::clone(&started);
        let _consumer = impatient
            .consumer::<u32>(queue.as_str())
            .start(move |_: Message<u32>| {
                running.add_permits(1);
                std::future::pending()
            })
            .await
            .unwrap();
        let typed = acemq::Envelope::of("t");
        fixture.mq.publisher::<u32>("", queue.as_str()).send_with(&1, typed).await.unwrap();
        soon("the handler", started.acquire()).await.unwrap().forget();
        assert_eq!(soon("the close", impatient.close()).await.abandoned(), 1);
        fixture.until_length(&queue, 1).await;

        let values = recorded.values();
        assert_eq!(of(&values, metric::CONSUME_TOTAL), expected([("t rejected", 1.0)]));
        assert_eq!(of(&values, metric::CONSUME_IN_FLIGHT), expected([("", 0.0)]));
    }

    async fn each_call_counts_once_by_its_end(fixture) {
        let recorded = Recorded::start();
        let queue = fixture.queue("asked").await;
        let responder = fixture
            .mq
            .respond(queue.as_str(), |question: u32| async move {
                if question == 0 { Err(std::io::Error::other("zero")) } else { Ok(question) }
            })
            .await
            .unwrap();
        let requester = fixture.mq.requester().await.unwrap();
        let patience = Duration::from_secs(20);
        let asked: u32 = requester.request("", &queue, &1_u32, patience).await.unwrap();
        assert_eq!(asked, 1);
        requester.request::<_, u32>("", &queue, &0_u32, patience).await.unwrap_err();
        soon("the close", responder.close()).await;
        let short = Duration::from_millis(20);
        requester.request::<_, u32>("", &queue, &1_u32, short).await.unwrap_err();
        drop(requester.start::<_, u32>("", &queue, &1_u32, patience).await.unwrap());

        let ends = [("answered", 1.0), ("failed", 1.0), ("timed_out", 1.0), ("cancelled", 1.0)];
        let values = recorded.values();
        assert_eq!(of(&values, metric::REQUEST_TOTAL), expected(ends));
        assert_eq!(of(&values, metric::REQUEST_DURATION), expected(ends));
        requester.close().await;
    }

    async fn a_relay_counts_what_it_published_and_what_failed(fixture) {
        use acemq::{OutboxRecord, OutboxRelay, SqliteOutbox};

        let recorded = Recorded::start();
        let queue = fixture.queue("relayed").await;
        let pool = sqlx::sqlite::SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let outbox = SqliteOutbox::new(pool.clone());
        outbox.migrate().await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        for key in [queue.clone(), fixture.name("nowhere")] {
            let record = OutboxRecord::json("", key, &1_u32).unwrap().message_type("t");
            outbox.add(&mut tx, record).await.unwrap();
        }
        tx.commit().await.unwrap();
        OutboxRelay::new(&fixture.mq, outbox).drain_once().await.unwrap();

        let values = recorded.values();
        let outcomes = expected([("published", 1.0), ("failed", 1.0)]);
        assert_eq!(of(&values, metric::OUTBOX_TOTAL), outcomes);
        assert_eq!(of(&values, metric::OUTBOX_LAG), outcomes);
        assert_eq!(of(&values, metric::PUBLISH_TOTAL).len(), 2);
    }
}
