//! What a relay says of itself, with the handle that it publishes to.

use std::time::Duration;

use acemq::{HealthStatus, OutboxRecord, OutboxRelay};

use crate::{
    support::{Broker, Fixture, eventually},
    world::{Lite, Pg, World, run},
};

async fn a_relay_is_told_as_long_as_it_is_held<W: World>(fx: &Fixture, world: &W) {
    let queue = fx.queue("orders").await;
    let relay =
        OutboxRelay::new(&fx.mq, world.outbox()).poll_interval(Duration::from_millis(20)).start();
    world.add(vec![OutboxRecord::bytes("", queue, "text/plain", "one")]).await;
    eventually("the publish to be told", async || {
        let health = fx.mq.health().await;
        let details = &health.components[0].details;
        details["published"] == 1 && details["oldest_pending_ms"].is_null()
    })
    .await;
    assert_eq!(fx.mq.health().await.status, HealthStatus::Up);

    world.execute("ALTER TABLE {outbox} RENAME COLUMN payload TO gone").await;
    let told = async |status| {
        let health = fx.mq.health().await;
        let of = &health.components[0];
        of.status == status && of.reason.is_some() == (status != HealthStatus::Up)
    };
    eventually("the loss", async || told(HealthStatus::Degraded).await).await;
    world.execute("ALTER TABLE {outbox} RENAME COLUMN gone TO payload").await;
    eventually("the return", async || told(HealthStatus::Up).await).await;

    relay.close().await;
    assert!(told(HealthStatus::Down).await);
    drop(relay);
    assert!(fx.mq.health().await.components.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_of_postgres_is_told_as_long_as_it_is_held() {
    run(Broker::Memory, |fx, world: Pg| async move {
        a_relay_is_told_as_long_as_it_is_held(&fx, &world).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_of_sqlite_is_told_as_long_as_it_is_held() {
    run(Broker::Memory, |fx, world: Lite| async move {
        a_relay_is_told_as_long_as_it_is_held(&fx, &world).await;
    })
    .await;
}
