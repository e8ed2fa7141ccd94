//! Interruptions and foreign messages, which only a broker that can be stopped and looked into
//! shows step by step. The rest is in the conformance suite, on both brokers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::task::yield_now;

use super::{super::HandlerError, Death, ReplayEnd, ReplayReport};
use crate::{
    connection::{AceMq, Core},
    error::{Error, Result},
    idempotency::{IdempotencyStore, MemoryIdempotencyStore},
    message::{BytesCodec, HeaderValue, Headers, Properties},
    topology::{Queue, Topology},
    transport::{
        Outgoing,
        memory::{MemoryBroker, MemoryTransport},
    },
};

const DEAD_LETTERS: &str = "orders.dlq";

/// A broker with the queues `orders` and `orders.dlq`, and this many dead letters.
async fn with_dead_letters(count: usize) -> (AceMq, MemoryBroker) {
    let transport = MemoryTransport::private();
    let broker = transport.broker();
    let options = AceMq::options("memory://");
    let mq = AceMq::over(Core::connect(Arc::new(transport), options).await.unwrap());
    mq.declare(&Topology::new().queue(Queue::new("orders"))).await.unwrap();
    for number in 0..count {
        put(&mq, DEAD_LETTERS, properties(&format!("m{number}"))).await;
    }
    (mq, broker)
}

fn properties(id: &str) -> Properties {
    Properties {
        message_id: Some(id.to_owned()),
        content_type: Some("application/octet-stream".to_owned()),
        persistent: true,
        ..Properties::default()
    }
}

async fn put(mq: &AceMq, queue: &str, properties: Properties) {
    let message = Outgoing {
        exchange: String::new(),
        routing_key: queue.to_owned(),
        mandatory: true,
        properties,
        body: Bytes::from_static(b"\x00 any bytes \xff"),
    };
    mq.core().publish(message, Duration::from_secs(1)).await.unwrap();
}

fn ids(broker: &MemoryBroker, queue: &str) -> Vec<String> {
    broker.messages(queue).into_iter().map(|(_, p, _)| p.message_id.unwrap()).collect()
}

fn all(count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("m{number}")).collect()
}

async fn until(condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        yield_now().await;
    }
    panic!("it never happened");
}

/// Starts a replay whose publish number `publish`, from 0, waits for a confirm that is held back.
async fn stuck_at(
    publish: u64,
    mq: &AceMq,
    broker: &MemoryBroker,
) -> tokio::task::JoinHandle<Result<ReplayReport>> {
    let hold = broker.clone();
    if publish == 0 {
        broker.hold_confirms(true);
    }
    let replay = mq.replay(DEAD_LETTERS).on_progress(move |done| {
        if done.moved == publish {
            hold.hold_confirms(true);
        }
    });
    let running = tokio::spawn(replay.run());
    until(|| broker.unconfirmed() == 1).await;
    running
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_is_dropped_before_any_confirm_loses_nothing() {
    for publish in 0..5_u64 {
        let (mq, broker) = with_dead_letters(5).await;
        let running = stuck_at(publish, &mq, &broker).await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        broker.hold_confirms(false);
        until(|| broker.unsettled(DEAD_LETTERS) == 0).await;
        // The copy is there, its original stayed: twice rather than never.
        let (left, moved) = (ids(&broker, DEAD_LETTERS), ids(&broker, "orders"));
        assert_eq!((left.len() as u64, moved.len() as u64), (5 - publish, publish + 1));
        assert_eq!(left[0], format!("m{publish}"));
        assert_eq!(left.into_iter().chain(moved).collect::<BTreeSet<_>>(), all(5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_before_any_confirm_ends_the_replay_and_loses_nothing() {
    for publish in 0..5_u64 {
        let (mq, broker) = with_dead_letters(5).await;
        let running = stuck_at(publish, &mq, &broker).await;
        broker.disconnect_all("pulled the plug");
        broker.hold_confirms(false);
        let report = running.await.unwrap().unwrap();
        assert_eq!(report.moved(), publish);
        let error = report.error().expect("an interruption");
        assert!(error.may_have_been_published(), "{error}");
        let (left, moved) = (ids(&broker, DEAD_LETTERS), ids(&broker, "orders"));
        assert_eq!(left[0], format!("m{publish}"));
        assert_eq!(left.into_iter().chain(moved).collect::<BTreeSet<_>>(), all(5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_between_two_messages_ends_the_replay_and_the_next_goes_on() {
    for after in 1..5_u64 {
        let (mq, broker) = with_dead_letters(5).await;
        let plug = broker.clone();
        let replay = mq.replay(DEAD_LETTERS).on_progress(move |done| {
            if done.moved == after {
                plug.disconnect_all("pulled the plug");
            }
        });
        let report = replay.run().await.unwrap();
        assert_eq!(report.moved(), after);
        assert!(matches!(report.error(), Some(Error::Interrupted { .. })), "{report:?}");
        let report = mq.replay(DEAD_LETTERS).run().await.unwrap();
        assert_eq!((report.moved(), report.is_drained()), (5 - after, true));
        assert_eq!(ids(&broker, "orders"), all(5).into_iter().collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_confirm_that_never_comes_ends_the_replay_with_the_message_in_its_place() {
    let (mq, broker) = with_dead_letters(3).await;
    broker.hold_confirms(true);
    let report = mq.replay(DEAD_LETTERS).run().await.unwrap();
    assert!(matches!(report.error(), Some(Error::ConfirmTimeout { .. })), "{report:?}");
    assert_eq!(report.moved(), 0);
    assert_eq!(ids(&broker, DEAD_LETTERS), ["m0", "m1", "m2"]);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_blocks_publishing_ends_the_replay_with_nothing_moved() {
    let (mq, broker) = with_dead_letters(3).await;
    broker.block("low on memory");
    let report = mq.replay(DEAD_LETTERS).run().await.unwrap();
    assert!(matches!(report.error(), Some(Error::Blocked { .. })), "{report:?}");
    assert_eq!(ids(&broker, DEAD_LETTERS), ["m0", "m1", "m2"]);
    assert_eq!(ids(&broker, "orders"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_ends_the_replay_with_nothing_moved() {
    let (mq, broker) = with_dead_letters(2).await;
    let full = MemoryIdempotencyStore::new().capacity(1);
    full.try_claim("orders", "another").await.unwrap();
    let report = mq.replay(DEAD_LETTERS).releasing(full, "orders").run().await.unwrap();
    assert!(matches!(report.error(), Some(Error::Store { .. })), "{report:?}");
    assert_eq!(ids(&broker, DEAD_LETTERS), ["m0", "m1"]);
    assert_eq!(ids(&broker, "orders"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn every_property_of_a_foreign_message_is_kept_but_the_two_that_cannot_be() {
    let (mq, broker) = with_dead_letters(0).await;
    let mut nested = Headers::new();
    nested.insert("inner", HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::Null]));
    let headers: Headers = [
        ("nested", HeaderValue::Table(nested)),
        ("double", HeaderValue::Double(0.1)),
        ("x-acemq-from-the-future", HeaderValue::from("kept")),
        ("x-acemq-replay-count", HeaderValue::Long(4)),
        ("x-acemq-replayed-from", HeaderValue::from("long ago")),
        ("x-acemq-error", HeaderValue::from("boom")),
        ("x-death", HeaderValue::List(Vec::new())),
        ("x-first-death-queue", HeaderValue::from("orders")),
    ]
    .into_iter()
    .collect();
    let foreign = Properties {
        headers,
        message_id: Some("id".into()),
        content_type: Some("application/vnd.own; v=1".into()),
        content_encoding: Some("gzip".into()),
        persistent: false,
        priority: Some(3),
        correlation_id: Some("correlation".into()),
        reply_to: Some("answers".into()),
        expiration: Some("3600000".into()),
        timestamp: Some(1_700_000_000),
        kind: Some("kind".into()),
        user_id: Some("guest".into()),
        app_id: Some("app".into()),
    };
    put(&mq, DEAD_LETTERS, foreign.clone()).await;
    assert_eq!(mq.replay(DEAD_LETTERS).run().await.unwrap().moved(), 1);
    let (_, copy, body) = broker.messages("orders").remove(0);
    assert_eq!(body.as_ref(), b"\x00 any bytes \xff");
    let mut headers = copy.headers.clone();
    assert!(headers.remove("acemq-replayed-at").is_some());
    let expected: Headers = [
        ("nested", foreign.headers.get("nested").unwrap().clone()),
        ("double", HeaderValue::Double(0.1)),
        ("x-acemq-from-the-future", HeaderValue::from("kept")),
        ("x-acemq-attempt", HeaderValue::Int(1)),
        ("acemq-replayed-from", HeaderValue::from(DEAD_LETTERS)),
        ("acemq-replay-count", HeaderValue::Int(5)),
    ]
    .into_iter()
    .collect();
    assert_eq!(headers, expected);
    let kept = Properties {
        headers: copy.headers.clone(),
        persistent: true,
        expiration: None,
        user_id: None,
        ..foreign
    };
    assert_eq!(copy, kept);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_an_id_is_moved_and_the_store_is_not_asked() {
    let (mq, broker) = with_dead_letters(0).await;
    put(&mq, DEAD_LETTERS, Properties::default()).await;
    let full = MemoryIdempotencyStore::new().capacity(1);
    full.try_claim("orders", "another").await.unwrap();
    let report = mq.replay(DEAD_LETTERS).releasing(full, "orders").run().await.unwrap();
    assert_eq!((report.moved(), report.is_drained()), (1, true), "{report:?}");
    assert_eq!(ids(&broker, "orders").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queue_with_the_old_name_of_dead_letters_has_its_way_back() {
    let (mq, broker) = with_dead_letters(0).await;
    mq.declare(&Topology::new().queue(Queue::classic("orders.dead"))).await.unwrap();
    put(&mq, "orders.dead", properties("m0")).await;
    assert_eq!(mq.replay("orders.dead").run().await.unwrap().moved(), 1);
    assert_eq!(ids(&broker, "orders"), ["m0"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_again_seconds_later_in_the_same_pass_ends_it() {
    let (mq, broker) = with_dead_letters(3).await;
    let start = |outcome: fn() -> Result<(), HandlerError>| {
        mq.consumer_with::<Bytes>("orders", BytesCodec).start(move |_| async move { outcome() })
    };
    let failing = start(|| Err(HandlerError::reject("no"))).await.unwrap();
    // At one in two seconds the first is back long before the second has moved.
    let report = mq.replay(DEAD_LETTERS).rate(0.5).run().await.unwrap();
    assert_eq!(report.moved(), 3);
    assert!(matches!(report.ended(), ReplayEnd::FailedAgain { id } if id == "m0"), "{report:?}");
    until(|| ids(&broker, DEAD_LETTERS) == ["m0", "m1", "m2"]).await;
    failing.close().await;
    let repaired = start(|| Ok(())).await.unwrap();
    let report = mq.replay(DEAD_LETTERS).run().await.unwrap();
    assert_eq!((report.moved(), report.is_drained()), (3, true), "{report:?}");
    until(|| repaired.stats().acked == 3).await;
}

#[test]
fn a_death_is_read_leniently() {
    let read = |value: HeaderValue| {
        let mut headers = Headers::new();
        headers.insert("x-death", value);
        Death::read(&headers)
    };
    let entry = |pairs: &[(&str, HeaderValue)]| {
        HeaderValue::Table(pairs.iter().cloned().collect::<Headers>())
    };
    assert_eq!(read(HeaderValue::from("text")), None);
    assert_eq!(read(HeaderValue::List(Vec::new())), None);
    assert_eq!(read(HeaderValue::List(vec![HeaderValue::Null])), None);
    assert_eq!(read(HeaderValue::List(vec![entry(&[("reason", "expired".into())])])), None);
    let death = read(HeaderValue::List(vec![entry(&[("queue", "orders".into())])])).unwrap();
    assert_eq!((death.queue.as_str(), death.count), ("orders", 1));
}
