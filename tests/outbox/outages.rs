//! A database or a broker that goes away while the relay is at work.
//!
//! `ACEMQ_OUTAGE_SECONDS` sets how long the broker is away; the short form is 3.

use std::time::{Duration, Instant};

use acemq::{AceMq, OutboxRecord, OutboxRelay, OutboxStore, RunningRelay};

use crate::{
    ledger::Ledger,
    support::{Broker, Fixture, amqp_url, eventually, proxy::Proxy},
    world::{Pg, World, run, through},
};

fn records(queue: &str, numbers: std::ops::Range<usize>) -> (Vec<String>, Vec<OutboxRecord>) {
    let texts: Vec<String> = numbers.map(|n| format!("key{}:{n}", n % 7)).collect();
    let records = texts.iter().map(|text| {
        let (key, _) = text.split_once(':').unwrap();
        OutboxRecord::bytes("", queue, "text/plain", text.clone()).ordering_key(key)
    });
    let records = records.collect();
    (texts, records)
}

/// A connection to the broker through a proxy, which fails fast.
async fn broker_through_proxy() -> (AceMq, Proxy) {
    let url = url::Url::parse(&amqp_url()).unwrap();
    let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672));
    let proxy = Proxy::to(&target).await;
    let options = AceMq::options(through(&url, &proxy))
        .confirm_timeout(Duration::from_secs(1))
        .reconnect_cap(Duration::from_millis(200));
    (options.connect().await.unwrap(), proxy)
}

fn started<W: World>(mq: &AceMq, world: &W) -> RunningRelay {
    OutboxRelay::new(mq, world.outbox())
        .batch_size(20)
        .lease(Duration::from_secs(2))
        .poll_interval(Duration::from_millis(20))
        .start()
}

async fn all_marked<W: World>(world: &W) {
    eventually("all marks", async || world.outbox().pending_count().await.unwrap() == 0).await;
}

async fn nothing_lost(fx: &Fixture, queue: &str, ledger: &Ledger, committed: &[String]) {
    eventually("the queue to be empty", async || {
        ledger.different() >= committed.len() && fx.mq.queue_length(queue).await.unwrap() == Some(0)
    })
    .await;
    let audit = ledger.audit(committed);
    println!("{audit:?}");
    let rest = (audit.lost, audit.phantoms, audit.renamed, audit.inversions);
    assert_eq!(rest, (0, 0, 0, 0), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_outage_spends_no_attempts_and_is_told_as_what_it_is() {
    let outage = std::env::var("ACEMQ_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    let outage = Duration::from_secs(outage.unwrap_or(3));
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let ledger = Ledger::of(&fx.mq, &queue).await;
        let (mq, proxy) = broker_through_proxy().await;
        let relay = started(&mq, &world);
        let (mut committed, first) = records(&queue, 0..200);
        world.add(first).await;
        eventually("the relay to be at work", async || relay.published() > 20).await;

        proxy.refuse();
        let (more, second) = records(&queue, 200..300);
        committed.extend(more);
        world.add(second).await;
        let mut look = tokio::time::interval(Duration::from_millis(50));
        while world.outbox().oldest_pending_age().await.unwrap().unwrap_or_default() < outage {
            look.tick().await;
        }
        let told = relay.last_error().expect("an outage is an error");
        assert!(
            ["connected", "interrupted", "no confirm", "connection"]
                .iter()
                .any(|word| told.contains(word)),
            "{told}"
        );
        assert!(world.outbox().oldest_pending_age().await.unwrap().unwrap() >= outage);
        assert!(relay.is_running());
        proxy.forward();

        all_marked(&world).await;
        let spent = "SELECT count(*) FROM {outbox} WHERE attempts > 0 OR last_error IS NOT NULL";
        assert_eq!(world.number(spent).await, 0, "an outage is no record's own failure");
        assert_eq!((relay.failed(), relay.retired()), (0, 0));
        nothing_lost(&fx, &queue, &ledger, &committed).await;
        relay.close().await;
        mq.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_broker_connections_lose_nothing_and_keep_the_order() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let ledger = Ledger::of(&fx.mq, &queue).await;
        let (mq, proxy) = broker_through_proxy().await;
        let relay = started(&mq, &world);
        let mut committed = Vec::new();
        for round in 0..15 {
            let (texts, records) = records(&queue, round * 40..round * 40 + 40);
            world.add(records).await;
            committed.extend(texts);
            let before = ledger.len();
            eventually("progress", async || ledger.len() > before + 5).await;
            proxy.cut();
        }
        all_marked(&world).await;
        assert_eq!(relay.failed(), 0);
        nothing_lost(&fx, &queue, &ledger, &committed).await;
        relay.close().await;
        mq.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_never_come_hold_nothing_up_for_ever() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let ledger = Ledger::of(&fx.mq, &queue).await;
        let (mq, proxy) = broker_through_proxy().await;
        let relay = started(&mq, &world);
        proxy.deafen();
        let (committed, all) = records(&queue, 0..100);
        world.add(all).await;
        eventually("a confirm to be missed", async || relay.last_error().is_some()).await;
        // What was swallowed is gone for this connection, whether or not it was an answer.
        proxy.cut();
        proxy.forward();
        all_marked(&world).await;
        assert_eq!(relay.failed(), 0);
        nothing_lost(&fx, &queue, &ledger, &committed).await;
        relay.close().await;
        mq.close().await;
    })
    .await;
}

/// B22: nothing of the database is held while the broker is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_broker_holds_no_transaction_and_no_pooled_connection() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let ledger = Ledger::of(&fx.mq, &queue).await;
        let (_, proxy) = broker_through_proxy().await;
        let url = url::Url::parse(&amqp_url()).unwrap();
        let frozen = AceMq::connect(through(&url, &proxy)).await.unwrap();
        let small = world.with_connections(2).await;
        let stuck = started(&frozen, &small);
        proxy.stall();
        let (mut committed, first) = records(&queue, 0..60);
        world.add(first).await;
        let leased = "SELECT count(*) FROM {outbox} WHERE lease_until IS NOT NULL";
        eventually("claims", async || world.number(leased).await > 0).await;

        // The application goes on over the same two connections, and another relay over its own.
        let other = started(&fx.mq, &world);
        for number in 60..5000 {
            if number >= 80 && other.published() > 0 {
                break;
            }
            // Of another key: those of a key that is claimed have to wait for it.
            let text = format!("own{number}:{number}");
            let record = OutboxRecord::bytes("", queue.as_str(), "text/plain", text.clone());
            small.add(vec![record.ordering_key(format!("own{number}"))]).await;
            committed.push(text);
        }
        assert!(other.published() > 0, "all that was added stayed with the frozen relay");
        let idle = "SELECT count(*) FROM pg_stat_activity
                    WHERE state LIKE 'idle in transaction%' AND query LIKE '%{outbox}%'";
        assert_eq!(world.number(idle).await, 0);

        proxy.cut();
        proxy.forward();
        all_marked(&world).await;
        assert_eq!(stuck.failed() + other.failed(), 0);
        nothing_lost(&fx, &queue, &ledger, &committed).await;
        stuck.close().await;
        other.close().await;
        frozen.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_and_refused_database_connections_lose_nothing_and_keep_the_order() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let ledger = Ledger::of(&fx.mq, &queue).await;
        let (cut_off, proxy) = world.through_proxy().await;
        let relay = started(&fx.mq, &cut_off);
        let mut committed = Vec::new();
        for round in 0..10 {
            let (texts, records) = records(&queue, round * 40..round * 40 + 40);
            world.add(records).await;
            committed.extend(texts);
            let before = ledger.len();
            eventually("progress", async || ledger.len() > before + 5).await;
            if round % 3 == 2 {
                proxy.refuse();
                eventually("the loss to be noticed", async || {
                    relay.last_error().is_some_and(|error| error.contains("outbox"))
                })
                .await;
                proxy.forward();
            } else {
                proxy.cut();
            }
        }
        all_marked(&world).await;
        assert!(relay.is_running());
        assert_eq!(relay.failed(), 0);
        nothing_lost(&fx, &queue, &ledger, &committed).await;
        relay.close().await;
    })
    .await;
}

/// Field case B09: a database that is away is asked again and again, with growing pauses, and not
/// hammered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_is_not_hammered_and_is_found_again() {
    run(Broker::Memory, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let ledger = Ledger::of(&fx.mq, &queue).await;
        let (cut_off, proxy) = world.through_proxy().await;
        let relay = started(&fx.mq, &cut_off);
        let (committed, all) = records(&queue, 0..10);
        world.add(all).await;
        all_marked(&world).await;

        proxy.refuse();
        eventually("the loss to be noticed", async || relay.last_error().is_some()).await;
        let (since, before) = (Instant::now(), proxy.attempts());
        eventually("four more attempts", async || proxy.attempts() >= before + 4).await;
        // Pauses from 200 ms on that double, each shortened by half at most. Hammering would take
        // milliseconds.
        assert!(since.elapsed() > Duration::from_millis(300), "{:?}", since.elapsed());
        let (texts, more) = records(&queue, 10..20);
        world.add(more).await;
        proxy.forward();
        let committed = [committed, texts].concat();
        all_marked(&world).await;
        nothing_lost(&fx, &queue, &ledger, &committed).await;
        relay.close().await;
    })
    .await;
}
