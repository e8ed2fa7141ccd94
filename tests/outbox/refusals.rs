//! Records that the broker refuses: each fails alone, for the broker's reason.

use std::{sync::Arc, time::Duration};

use acemq::outbox::RetryDelay;
use acemq::{AceMq, Exchange, OutboxRecord, OutboxRelay, OutboxStore, Overflow, Queue, Topology};

use crate::{
    ledger::Ledger,
    support::{Fixture, eventually},
    world::{World, on_databases},
};

on_databases!(
    a_record_to_a_missing_exchange_waits_with_the_reason_until_the_exchange_is_there,
    unroutable_records_in_a_batch_are_exactly_those_that_fail,
    a_full_queue_refuses_its_own_records_only,
    a_body_over_the_limit_fails_alone,
    poison_at_the_head_of_the_table_does_not_starve_good_records,
);

fn text(exchange: &str, key: &str, text: impl Into<String>) -> OutboxRecord {
    OutboxRecord::bytes(exchange, key, "text/plain", text.into())
}

async fn errors<W: World>(world: &W) -> Vec<String> {
    let sql = "SELECT attempts || ' ' || last_error FROM {outbox} WHERE last_error IS NOT NULL";
    world.texts(sql).await
}

async fn a_record_to_a_missing_exchange_waits_with_the_reason_until_the_exchange_is_there<W>(
    fx: Arc<Fixture>,
    world: W,
) where
    W: World,
{
    let queue = fx.queue("orders").await;
    let exchange = fx.name("exchange");
    let mut ledger = Ledger::of(&fx.mq, &queue).await;
    world.add(vec![text(&exchange, "k", "missing:1"), text("", &queue, "good:1")]).await;
    let relay = OutboxRelay::new(&fx.mq, world.outbox());
    let report = relay.drain(0).await.unwrap();
    assert_eq!((report.published(), report.failed(), report.released()), (1, 1, 0), "{report:?}");
    let errors = errors(&world).await;
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("1 ") && errors[0].contains(&exchange), "{errors:?}");

    let topology = Topology::new()
        .exchange(Exchange::topic(exchange.as_str()))
        .queue(Queue::new(queue.as_str()))
        .bind(queue.as_str(), exchange.as_str(), "#");
    fx.mq.declare(&topology).await.unwrap();
    world.make_due().await;
    assert_eq!(relay.drain(0).await.unwrap().published(), 1);
    ledger.until_length(2).await;
    assert_eq!(ledger.texts(), ["good:1", "missing:1"]);
    assert_eq!(world.outbox().pending_count().await.unwrap(), 0);
}

async fn unroutable_records_in_a_batch_are_exactly_those_that_fail<W: World>(
    fx: Arc<Fixture>,
    world: W,
) {
    let queue = fx.queue("orders").await;
    let nowhere = fx.name("nowhere");
    let mut ledger = Ledger::of(&fx.mq, &queue).await;
    let records = (0..50).map(|n| match n % 5 {
        0 => text("", &nowhere, format!("nowhere:{n}")),
        _ => text("", &queue, format!("good:{n}")),
    });
    world.add(records.collect()).await;
    let report = OutboxRelay::new(&fx.mq, world.outbox()).drain_once().await.unwrap();
    assert_eq!((report.published(), report.failed()), (40, 10), "{report:?}");
    ledger.until_length(40).await;
    assert!(ledger.texts().iter().all(|text| text.starts_with("good")));
    let routed =
        format!("SELECT count(*) FROM {{outbox}} WHERE attempts > 0 AND routing_key = '{queue}'");
    assert_eq!(world.number(&routed).await, 0);
    let errors = errors(&world).await;
    assert_eq!(errors.len(), 10);
    assert!(errors.iter().all(|e| e.contains("NO_ROUTE")), "{errors:?}");
}

async fn a_full_queue_refuses_its_own_records_only<W: World>(fx: Arc<Fixture>, world: W) {
    let queue = fx.queue("orders").await;
    let small = fx.name("small");
    let topology = Topology::new()
        .queue(Queue::classic(small.as_str()).max_length(3, Overflow::RejectPublish));
    fx.mq.declare(&topology).await.unwrap();
    let mut ledger = Ledger::of(&fx.mq, &queue).await;
    let records =
        (0..10).flat_map(|n| [text("", &small, "x"), text("", &queue, format!("good:{n}"))]);
    world.add(records.collect()).await;
    let relay = OutboxRelay::new(&fx.mq, world.outbox()).concurrency(1);
    let report = relay.drain_once().await.unwrap();
    assert_eq!((report.published(), report.failed()), (13, 7), "{report:?}");
    ledger.until_length(10).await;
    let errors = errors(&world).await;
    assert_eq!(errors.len(), 7);
    assert!(errors.iter().all(|e| e.contains("refused")), "{errors:?}");
}

async fn a_body_over_the_limit_fails_alone<W: World>(fx: Arc<Fixture>, world: W) {
    let queue = fx.queue("orders").await;
    let mut ledger = Ledger::of(&fx.mq, &queue).await;
    let mq: AceMq = fx.options().max_body_size(1000).connect().await.unwrap();
    let large = OutboxRecord::bytes("", queue.as_str(), "text/plain", vec![b'x'; 1001]);
    world.add(vec![large, text("", &queue, "good:1")]).await;
    let report = OutboxRelay::new(&mq, world.outbox()).drain(0).await.unwrap();
    assert_eq!((report.published(), report.failed()), (1, 1), "{report:?}");
    ledger.until_length(1).await;
    let errors = errors(&world).await;
    assert!(errors[0].contains("max_body_size"), "{errors:?}");
    mq.close().await;
}

async fn poison_at_the_head_of_the_table_does_not_starve_good_records<W: World>(
    fx: Arc<Fixture>,
    world: W,
) {
    const BATCH: u32 = 20;
    let nowhere = fx.name("nowhere");
    for poison in [1, BATCH, 3 * BATCH] {
        let queue = fx.queue("orders").await;
        let mut ledger = Ledger::of(&fx.mq, &queue).await;
        let bad = (0..poison).map(|n| text("", &nowhere, format!("bad:{n}")));
        let good = (0..100).map(|n| text("", &queue, format!("good:{n}")));
        world.add(bad.chain(good).collect()).await;
        let relay = OutboxRelay::new(&fx.mq, world.outbox())
            .batch_size(BATCH)
            .max_attempts(3)
            .retry_delay(RetryDelay::linear(Duration::from_millis(20), Duration::from_millis(40)))
            .poll_interval(Duration::from_millis(20))
            .start();
        ledger.until_length(100).await;
        let retired = "SELECT count(*) FROM {outbox} WHERE retired_at IS NOT NULL";
        eventually("the poison to retire", async || {
            world.number(retired).await == i64::from(poison)
        })
        .await;
        relay.close().await;
        assert_eq!(relay.failed(), u64::from(3 * poison), "attempts are bounded");
        let spent = "SELECT count(*) FROM {outbox} WHERE published_at IS NOT NULL AND attempts > 0";
        assert_eq!(world.number(spent).await, 0);
        world.execute("DELETE FROM {outbox}").await;
    }
}
