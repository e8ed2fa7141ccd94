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
}
