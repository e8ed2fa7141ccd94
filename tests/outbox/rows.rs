//! Rows that cannot go out, and outages during which none can.

use std::time::Duration;

use acemq::{
    Exchange, OutboxRecord, OutboxRelay, OutboxStore, Overflow, PostgresOutbox, Queue, Topology,
};
use bytes::Bytes;
use sqlx::{AssertSqlSafe, PgPool};

use crate::{
    relays::{drop_tables, pool, unique_prefix},
    support::{Broker, Fixture, Inbox, amqp_url, eventually, proxy::Proxy, run},
};

/// Runs a case with an outbox of its own on PostgreSQL and RabbitMQ.
async fn with_outbox(case: impl AsyncFn(&Fixture, &PgPool, &str, PostgresOutbox)) {
    let (pool, prefix) = (pool().await, unique_prefix());
    let outbox = PostgresOutbox::new(pool.clone()).table_prefix(&prefix).unwrap();
    outbox.migrate().await.unwrap();
    run(Broker::RabbitMq, |fx| {
        let (case, pool, prefix) = (&case, &pool, prefix.as_str());
        async move { case(&fx, pool, prefix, outbox).await }
    })
    .await;
    drop_tables(&pool, &prefix).await;
}

async fn add(pool: &PgPool, outbox: &PostgresOutbox, record: OutboxRecord) {
    let mut tx = pool.begin().await.unwrap();
    assert!(outbox.add(&mut tx, record).await.unwrap());
    tx.commit().await.unwrap();
    outbox.wake();
}

/// Attempts and last error of the rows that are not published, by routing key.
async fn failures(pool: &PgPool, prefix: &str) -> Vec<(String, i32, Option<String>)> {
    let sql = format!(
        "SELECT routing_key, attempts, last_error FROM {prefix}outbox
         WHERE published_at IS NULL ORDER BY seq"
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_all(pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_the_broker_refuses_fails_with_its_reason_and_its_neighbours_go_on() {
    with_outbox(async |fx, pool, prefix, outbox| {
        let good = fx.queue("good").await;
        let full = fx.name("full");
        let limited = Queue::classic(full.as_str()).max_length(1, Overflow::RejectPublish);
        fx.mq.declare(&Topology::new().queue(limited)).await.unwrap();
        fx.mq.publisher::<u32>("", full.as_str()).send(&0).await.unwrap();
        let (nowhere, exchange) = (fx.name("nowhere"), fx.name("exchange"));

        for number in 0..20_u32 {
            add(pool, &outbox, OutboxRecord::json("", &good, &number).unwrap()).await;
        }
        add(pool, &outbox, OutboxRecord::json("", &nowhere, &1).unwrap()).await;
        add(pool, &outbox, OutboxRecord::json(&exchange, "missing", &2).unwrap()).await;
        add(pool, &outbox, OutboxRecord::json("", &full, &3).unwrap()).await;
        for number in 20..40_u32 {
            add(pool, &outbox, OutboxRecord::json("", &good, &number).unwrap()).await;
        }
        let relay = OutboxRelay::new(&fx.mq, outbox.clone())
            .retry_delay(acemq::outbox::RetryDelay::linear(
                Duration::from_millis(50),
                Duration::from_millis(200),
            ))
            .start();
        fx.until_length(&good, 40).await;
        eventually("the others to have failed twice", async || {
            let rows = failures(pool, prefix).await;
            rows.len() == 3 && rows.iter().all(|(_, attempts, _)| *attempts >= 2)
        })
        .await;
        let rows = failures(pool, prefix).await;
        for ((key, _, error), (wanted, reason)) in rows.iter().zip([
            (nowhere.as_str(), "NO_ROUTE"),
            ("missing", "no exchange"),
            (full.as_str(), "refused"),
        ]) {
            let error = error.as_deref().unwrap_or_default();
            assert_eq!(key, wanted);
            assert!(error.contains(reason), "{key}: {error}");
        }
        // What was missing is made, and the row goes out by itself.
        let late = Topology::new()
            .exchange(Exchange::direct(exchange.as_str()).auto_delete())
            .bind(good.as_str(), exchange.as_str(), "missing");
        fx.mq.declare(&late).await.unwrap();
        fx.until_length(&good, 41).await;
        relay.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_rows_at_the_head_retire_and_starve_nobody() {
    with_outbox(async |fx, pool, prefix, outbox| {
        let (good, nowhere) = (fx.queue("good").await, fx.name("nowhere"));
        // Three whole batches of rows that can never go out, in front of everything.
        for number in 0..30_u32 {
            add(pool, &outbox, OutboxRecord::json("", &nowhere, &number).unwrap()).await;
        }
        for number in 0..100_u32 {
            add(pool, &outbox, OutboxRecord::json("", &good, &number).unwrap()).await;
        }
        let relay = OutboxRelay::new(&fx.mq, outbox.clone())
            .batch_size(10)
            .max_attempts(3)
            .retry_delay(acemq::outbox::RetryDelay::linear(
                Duration::from_millis(20),
                Duration::from_millis(50),
            ))
            .start();
        fx.until_length(&good, 100).await;
        eventually("the poison to retire", async || outbox.retired(100).await.unwrap().len() == 30)
            .await;
        assert_eq!((relay.published(), relay.retired()), (100, 30));
        let rows = failures(pool, prefix).await;
        assert!(rows.iter().all(|(_, attempts, _)| *attempts == 3), "{rows:?}");
        relay.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_broker_spends_no_attempts() {
    with_outbox(async |fx, pool, prefix, outbox| {
        let queue = fx.queue("events").await;
        let url = url::Url::parse(&amqp_url()).unwrap();
        let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672));
        let proxy = Proxy::to(&target).await;
        let mut through = url.clone();
        through.set_host(Some("127.0.0.1")).unwrap();
        through.set_port(Some(proxy.port())).unwrap();
        let mq = acemq::AceMq::options(through.as_str())
            .confirm_timeout(Duration::from_millis(300))
            .connect()
            .await
            .unwrap();
        let relay =
            OutboxRelay::new(&mq, outbox.clone()).poll_interval(Duration::from_millis(20)).start();
        add(pool, &outbox, OutboxRecord::json("", &queue, &0).unwrap()).await;
        fx.until_length(&queue, 1).await;

        proxy.refuse();
        for number in 1..=50_u32 {
            add(pool, &outbox, OutboxRecord::json("", &queue, &number).unwrap()).await;
        }
        // The relay has tried, and says why it does not publish.
        eventually("the outage to be noticed", async || relay.last_error().is_some()).await;
        let before = proxy.attempts();
        eventually("three more attempts to connect", async || proxy.attempts() >= before + 3).await;
        let rows = failures(pool, prefix).await;
        assert_eq!(rows.len(), 50);
        assert!(rows.iter().all(|(_, attempts, _)| *attempts == 0), "{rows:?}");
        assert!(relay.is_running());

        proxy.forward();
        fx.until_length(&queue, 51).await;
        assert_eq!((relay.failed(), relay.retired()), (0, 0));
        relay.close().await;
        mq.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_of_a_payload_goes_out_as_it_was_added() {
    with_outbox(async |fx, pool, _, outbox| {
        let queue = fx.queue("events").await;
        let payloads: [&[u8]; 5] = [
            b"",
            b"\x00\x01\xff\xfe NUL and no UTF-8",
            br#"{"b":1.0, "a":1,"a":2 , "big":123456789012345678901234567890}"#,
            "日本語 \u{1F980}".as_bytes(),
            &[b'x'; 100_000],
        ];
        for payload in payloads {
            let payload = Bytes::copy_from_slice(payload);
            let kind = "application/vnd.own+json; v=1";
            add(pool, &outbox, OutboxRecord::bytes("", &queue, kind, payload)).await;
        }
        let report = OutboxRelay::new(&fx.mq, outbox.clone()).drain(0).await.unwrap();
        assert_eq!(report.published(), 5);
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        let mut arrived = Vec::new();
        for _ in payloads {
            let message = inbox.next().await;
            assert_eq!(message.content_type(), Some("application/vnd.own+json; v=1"));
            arrived.push(message.into_payload());
        }
        arrived.sort();
        let mut expected: Vec<Bytes> =
            payloads.iter().map(|payload| Bytes::copy_from_slice(payload)).collect();
        expected.sort();
        assert_eq!(arrived, expected);
    })
    .await;
}
