//! A table that comes back from a dump, and clocks that do not agree.

use std::{sync::Arc, time::Duration};

use acemq::{OutboxRecord, OutboxRelay, OutboxStore, outbox::RetryDelay};
use chrono::TimeDelta;

use crate::{
    ledger::Ledger,
    support::{Broker, Fixture, eventually, unique},
    world::{Pg, World, on_databases, run},
};

on_databases!(a_table_restored_from_a_dump_goes_on_where_the_dump_was_taken);

const KEYS: usize = 4;

fn record(queue: &str, number: usize) -> OutboxRecord {
    let key = format!("key{}", number % KEYS);
    let text = format!("{key}:{number}");
    OutboxRecord::bytes("", queue, "text/plain", text).ordering_key(key)
}

fn texts(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("key{}:{number}", number % KEYS)).collect()
}

async fn a_table_restored_from_a_dump_goes_on_where_the_dump_was_taken<W: World>(
    fx: Arc<Fixture>,
    world: W,
) {
    let queue = fx.queue("orders").await;
    let ledger = Ledger::of(&fx.mq, &queue).await;
    world.add((0..60).map(|number| record(&queue, number)).collect()).await;
    let before = OutboxRelay::new(&fx.mq, world.outbox()).batch_size(20);
    assert_eq!(before.drain_once().await.unwrap().published(), 20);
    // Some are in the hands of a relay while the dump is taken.
    let leased = world.outbox().claim_batch(20, Duration::from_secs(1)).await.unwrap();
    assert_eq!(leased.records().len(), 20);

    let name = format!("t{}_", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    let restored = W::open(&name).await;
    restored.create().await;
    restored.restore_from(&world).await;
    assert_eq!(restored.outbox().pending_count().await.unwrap(), 40);
    // New records get sequence numbers after the restored ones, and so keep their order.
    restored.add((60..90).map(|number| record(&queue, number)).collect()).await;
    let relay = OutboxRelay::new(&fx.mq, restored.outbox())
        .poll_interval(Duration::from_millis(20))
        .start();
    eventually("everything to be published", async || {
        restored.outbox().pending_count().await.unwrap() == 0
    })
    .await;
    relay.close().await;
    let committed = texts(0..90);
    eventually("everything to come", async || ledger.audit(&committed).lost == 0).await;
    let audit = ledger.audit(&committed);
    let rest = (audit.phantoms, audit.duplicates, audit.renamed, audit.inversions);
    assert_eq!(rest, (0, 0, 0, 0), "{audit:?}");
    restored.drop().await;
}

/// PostgreSQL finds a function by the search path, so one of these names in front of its own is a
/// clock an hour away from the application's.
async fn with_the_database_clock_off_by(hours: i64) {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let schema = unique("clock").replace('.', "_");
        world
            .execute(&format!(
                "CREATE SCHEMA {schema};
                 CREATE FUNCTION {schema}.now() RETURNS timestamptz LANGUAGE sql STABLE
                     AS 'SELECT pg_catalog.now() + interval ''{hours} hours''';
                 CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
                     AS 'SELECT pg_catalog.clock_timestamp() + interval ''{hours} hours''';
                 CREATE FUNCTION {schema}.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
                     AS 'SELECT pg_catalog.statement_timestamp() + interval ''{hours} hours'''"
            ))
            .await;
        let shifted = world.with_search_path(&format!("{schema},pg_catalog,public")).await;
        let apart = shifted.number("SELECT extract(epoch FROM now() - pg_catalog.now())::bigint");
        assert_eq!(apart.await, hours * 3600, "the clocks do not differ: the test shows nothing");
        works_by_one_clock(&fx, &shifted).await;
        world.execute(&format!("DROP SCHEMA {schema} CASCADE")).await;
    })
    .await;
}

async fn works_by_one_clock(fx: &Fixture, world: &Pg) {
    let queue = fx.queue("orders").await;
    let missing = fx.name("missing");
    let mut ledger = Ledger::of(&fx.mq, &queue).await;
    let outbox = world.outbox();

    // A lease lasts as long as it says, for whoever looks.
    world.add(vec![record(&queue, 0)]).await;
    let taken = outbox.claim_batch(10, Duration::from_secs(60)).await.unwrap();
    assert_eq!(taken.records().len(), 1);
    assert!(taken.records()[0].age() < Duration::from_secs(60), "{:?}", taken.records()[0].age());
    assert!(outbox.claim_batch(10, Duration::from_secs(60)).await.unwrap().records().is_empty());
    let seqs = [taken.records()[0].seq()];
    assert_eq!(outbox.release(taken.token(), &seqs, Duration::ZERO).await.unwrap(), 1);

    // A new record is due at once, a failed one after its delay, and ages are small.
    let poison = OutboxRecord::bytes("", missing.as_str(), "text/plain", "poison:1");
    world.add(vec![record(&queue, 1), poison]).await;
    let relay = OutboxRelay::new(&fx.mq, outbox.clone())
        .retry_delay(RetryDelay::linear(Duration::from_millis(10), Duration::from_millis(10)))
        .max_attempts(3)
        .retention(Duration::from_secs(1800))
        .poll_interval(Duration::from_millis(20))
        .start();
    ledger.until_length(2).await;
    eventually("the poison to be retired", async || relay.retired() == 1).await;
    assert!(outbox.oldest_pending_age().await.unwrap() < Some(Duration::from_secs(60)));
    // Half an hour's retention has not passed, an hour apart or not.
    assert_eq!(outbox.purge(Duration::from_secs(1800), 100).await.unwrap(), 0);
    relay.close().await;

    // The time of a delayed record is the database's: what it means is in the documentation.
    let due = world.number("SELECT extract(epoch FROM now() + interval '1 minute')::bigint").await;
    let due = chrono::DateTime::from_timestamp(due, 0).unwrap();
    world.add(vec![record(&queue, 2).available_at(due)]).await;
    assert!(outbox.claim_batch(10, Duration::from_secs(60)).await.unwrap().records().is_empty());
    let past = due - TimeDelta::minutes(2);
    world.add(vec![record(&queue, 4).available_at(past)]).await;
    assert_eq!(outbox.claim_batch(10, Duration::from_secs(60)).await.unwrap().records().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_an_hour_ahead_of_the_application_changes_nothing() {
    with_the_database_clock_off_by(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_an_hour_behind_the_application_changes_nothing() {
    with_the_database_clock_off_by(-1).await;
}
