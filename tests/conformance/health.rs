//! What a handle says of itself and of what runs on it.

use acemq::{AceMq, ComponentHealth, HealthSource, HealthStatus, Message, testing::MemoryBroker};
use futures::{FutureExt, future::BoxFuture};
use std::sync::Arc;

use crate::support::{eventually, unique};

async fn statuses(mq: &AceMq) -> Vec<(String, HealthStatus)> {
    let health = mq.health().await;
    health.components.iter().map(|of| (of.name.clone(), of.status)).collect()
}

on_both_brokers! {
    async fn a_consumer_is_told_as_long_as_it_is_held(fx) {
        let queue = fx.queue("work").await;
        assert_eq!(statuses(&fx.mq).await, []);
        let consumer =
            fx.mq.consumer::<u32>(&queue).start(|_: Message<u32>| async { Ok(()) }).await.unwrap();
        fx.mq.publisher::<u32>("", &queue).send(&1).await.unwrap();
        eventually("the message to be told", async || {
            let health = fx.mq.health().await;
            health.is_ready() && health.components[0].details["received"] == 1
        })
        .await;
        consumer.pause();
        eventually("the pause", async || {
            fx.mq.health().await.components[0].details.contains_key("paused")
        })
        .await;
        assert_eq!(fx.mq.health().await.status, HealthStatus::Up);
        consumer.close().await;
        assert_eq!(statuses(&fx.mq).await, [(queue, HealthStatus::Down)]);
        drop(consumer);
        assert_eq!(statuses(&fx.mq).await, []);
    }

    async fn a_closed_handle_is_down_and_not_ready(fx) {
        let mq = fx.another().await;
        assert_eq!(mq.health().await.status, HealthStatus::Up);
        mq.close().await;
        let health = mq.health().await;
        assert!(!health.is_ready());
        assert_eq!(health.connection.reason.as_deref(), Some("closed"));
    }

    async fn health_is_plain_json(fx) {
        let queue = fx.queue("work").await;
        let _consumer =
            fx.mq.consumer::<u32>(&queue).start(|_: Message<u32>| async { Ok(()) }).await.unwrap();
        let json = serde_json::to_value(fx.mq.health().await).unwrap();
        assert_eq!(json["status"], "up");
        assert_eq!(json["connection"]["kind"], "connection");
        assert_eq!(json["components"][0]["kind"], "consumer");
        assert_eq!(json["components"][0]["name"], queue.as_str());
        assert_eq!(json["components"][0]["details"]["in_flight"], 0);
    }
}

#[tokio::test]
async fn an_alarm_degrades_and_a_loss_is_down() {
    let name = unique("broker");
    let broker = MemoryBroker::of(&name);
    let mq = AceMq::connect(format!("memory://{name}")).await.unwrap();
    broker.block("low on memory");
    eventually("the alarm", async || mq.health().await.status == HealthStatus::Degraded).await;
    let health = mq.health().await;
    assert!(health.is_ready(), "consuming goes on: {health:?}");
    assert!(health.connection.reason.unwrap().contains("low on memory"));

    broker.unblock();
    broker.refuse_connections(true);
    broker.disconnect_all("pulled the plug");
    eventually("the loss", async || !mq.health().await.is_ready()).await;
    broker.refuse_connections(false);
    eventually("the return", async || mq.health().await.status == HealthStatus::Up).await;
}

#[tokio::test]
async fn a_consumer_without_its_queue_degrades() {
    let mq = AceMq::connect("memory://").await.unwrap();
    mq.declare(&acemq::Topology::new().queue(acemq::Queue::new("work"))).await.unwrap();
    let _consumer =
        mq.consumer::<u32>("work").start(|_: Message<u32>| async { Ok(()) }).await.unwrap();
    mq.delete_queue("work").await.unwrap();
    eventually("the loss", async || mq.health().await.troubled().count() == 1).await;
    let health = mq.health().await;
    let reason = health.components[0].reason.as_deref().unwrap();
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(reason.contains("work"), "{reason}");
}

struct Stuck;

impl HealthSource for Stuck {
    fn health(&self) -> BoxFuture<'_, ComponentHealth> {
        std::future::pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_does_not_answer_holds_nobody() {
    let mq = AceMq::connect("memory://").await.unwrap();
    let sources: Vec<Arc<dyn HealthSource>> = vec![Arc::new(Stuck), Arc::new(Stuck)];
    sources.iter().for_each(|source| mq.watch_health(source));
    let before = tokio::time::Instant::now();
    let health = mq.health().await;
    assert_eq!(before.elapsed().as_secs(), 5, "all are asked at once");
    assert_eq!((health.status, health.components.len()), (HealthStatus::Degraded, 2));
}
