//! Declaring, comparing, deleting.

use std::time::Duration;

use super::{Fixture, bare, consume, message, sent, to};
use crate::{
    error::{Error, Result},
    message::HeaderValue,
    topology::{Exchange, Queue, Topology},
    transport::QueueInfo,
};

fn mismatch(result: Result<()>) -> (String, String, String) {
    match result {
        Err(Error::TopologyMismatch { object, name, argument, wanted, found }) => {
            assert_eq!(object, if name == "q" { "queue" } else { "exchange" });
            (argument, wanted, found)
        }
        other => panic!("not a mismatch: {other:?}"),
    }
}

fn reason(code: u16, result: Result<()>) -> String {
    match result {
        Err(Error::BrokerRefused { code: found, reason }) if found == code => reason,
        other => panic!("not refused with {code}: {other:?}"),
    }
}

fn full(ttl: impl Into<HeaderValue>) -> Queue {
    Queue::classic("q")
        .argument("x-message-ttl", ttl)
        .expires(Duration::from_secs(100))
        .dead_letter_to("dlx", "key")
}

#[tokio::test(start_paused = true)]
async fn declaring_the_same_again_changes_nothing() {
    let f = Fixture::with_queue(full(1000_i64)).await;
    f.send("q", &["kept"]).await;

    f.declare(full(1000_i32)).await;
    f.declare(full(1000_i64).argument("x-queue-type", "classic")).await;

    assert_eq!(f.ready("q"), ["kept"]);
}

#[tokio::test(start_paused = true)]
async fn each_difference_of_a_queue_is_named_with_both_values() {
    let f = Fixture::with_queue(full(1000_i64)).await;
    let refused = |queue: Queue| async { mismatch(f.try_declare(queue).await) };
    let text = |s: &str| s.to_owned();

    let durable = refused(full(1000_i64).transient()).await;
    assert_eq!(durable, (text("durable"), text("'false'"), text("'true'")));
    let auto_delete = refused(full(1000_i64).auto_delete()).await;
    assert_eq!(auto_delete, (text("auto_delete"), text("'true'"), text("'false'")));
    let ttl = refused(full(1001_i64)).await;
    assert_eq!(ttl, (text("x-message-ttl"), text("'1001'"), text("'1000'")));
    let as_text = refused(full("1000")).await;
    assert_eq!(as_text, (text("x-message-ttl"), text("'1000'"), text("'1000'")));
    let extra = refused(full(1000_i64).single_active_consumer()).await;
    let value = text("'true' of type 'bool'");
    assert_eq!(extra, (text("x-single-active-consumer"), value, text("none")));
    let absent = refused(Queue::classic("q")).await;
    let value = text("'100000' of type 'long'");
    assert_eq!(absent, (text("x-expires"), text("none"), value));
    let kind = refused(full(1000_i64).argument("x-queue-type", "quorum")).await;
    let value = text("'quorum' of type 'longstr'");
    assert_eq!(kind, (text("x-queue-type"), value, text("none")));
}

#[tokio::test(start_paused = true)]
async fn a_difference_stops_the_declaration() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let topology = Topology {
        queues: vec![
            Queue::classic("before"),
            Queue::classic("q").message_ttl(Duration::from_secs(1)),
            Queue::classic("after"),
        ],
        ..Topology::default()
    };

    mismatch(f.link.declare(&topology).await);

    assert_eq!(f.broker.queue_names(), ["before", "q"]);
}

#[tokio::test(start_paused = true)]
async fn each_difference_of_an_exchange_is_named() {
    let f = Fixture::new().await;
    let declare = |exchange: Exchange| {
        let topology = Topology::new().exchange(exchange);
        let link = &f.link;
        async move { link.declare(&topology).await }
    };
    declare(Exchange::direct("x")).await.unwrap();
    declare(Exchange::direct("x")).await.unwrap();

    let (argument, wanted, found) = mismatch(declare(Exchange::topic("x")).await);
    assert_eq!([argument, wanted, found], ["type", "'topic'", "'direct'"]);
    let (argument, ..) = mismatch(declare(Exchange::direct("x").transient()).await);
    assert_eq!(argument, "durable");
    let (argument, ..) = mismatch(declare(Exchange::direct("x").auto_delete()).await);
    assert_eq!(argument, "auto_delete");
    declare(Exchange::topic("amq.topic")).await.unwrap();
    let (argument, ..) = mismatch(declare(Exchange::topic("amq.topic").transient()).await);
    assert_eq!(argument, "durable");
    reason(403, declare(Exchange::topic("amq.own")).await);
    reason(403, declare(Exchange::direct("")).await);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_modelled_is_refused() {
    let f = Fixture::new().await;
    let q = || Queue::classic("q");
    for queue in [
        q().argument("something", true),
        q().argument("x-queue-type", "stream"),
        Queue::quorum("q").argument("x-max-in-memory-length", 5),
    ] {
        let refused = f.try_declare(queue.clone()).await;
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{queue:?}: {refused:?}");
    }
    let exchange = Exchange::direct("x").argument("something", "other");
    let refused = f.link.declare(&Topology::new().exchange(exchange)).await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    assert!(f.broker.queue_names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn arguments_that_cannot_work_are_refused_in_rabbitmqs_words() {
    let f = Fixture::new().await;
    let q = || Queue::classic("q");
    for (queue, problem) in [
        (q().argument("x-message-ttl", -1), "{value_negative,-1}"),
        (q().argument("x-message-ttl", "x"), "\"expected integer, got longstr\""),
        (q().argument("x-message-ttl", 315_360_000_001_i64), "{value_too_large,315360000001}"),
        (q().argument("x-expires", 0), "{value_zero,0}"),
        (q().argument("x-dead-letter-routing-key", "k"), "routing_key_but_no_dlx_defined"),
        (q().argument("x-overflow", "bogus"), "invalid_overflow"),
        (q().argument("x-max-length", -1), "{value_negative,-1}"),
        (q().argument("x-max-length-bytes", "x"), "\"expected integer, got longstr\""),
        (q().argument("x-max-priority", 256), "{max_value_exceeded,256}"),
        (q().argument("x-queue-mode", "eager"), "\"unsupported queue mode 'eager'\""),
        (q().argument("x-queue-version", 3), "\"unsupported queue version '3'\""),
        (q().argument("x-single-active-consumer", "x"), "{unacceptable_type,longstr}"),
        (q().argument("x-queue-type", "foo"), "\"unsupported queue type 'foo'\""),
        (q().argument("x-queue-type", 5), "{unacceptable_type,signedint}"),
        (Queue::quorum("q").argument("x-dead-letter-strategy", "foo"), "invalid_dlx_strategy"),
    ] {
        let text = reason(406, f.try_declare(queue).await);
        assert!(text.starts_with("PRECONDITION_FAILED - invalid arg 'x-"), "{text}");
        assert!(text.ends_with(&format!(" for queue 'q' in vhost '/': {problem}")), "{text}");
    }
    let limit = reason(406, f.try_declare(q().delivery_limit(3)).await);
    assert!(limit.ends_with("of queue type rabbit_classic_queue"), "{limit}");
    let priority = reason(406, f.try_declare(Queue::quorum("q").max_priority(3)).await);
    assert!(priority.ends_with("of queue type rabbit_quorum_queue"), "{priority}");
    for (queue, property) in [
        (Queue::quorum("q").transient(), "non-durable"),
        (Queue::quorum("q").exclusive(), "exclusive-owner"),
        (Queue::quorum("q").auto_delete(), "auto-delete"),
    ] {
        let text = reason(406, f.try_declare(queue).await);
        assert!(text.contains(&format!("invalid property '{property}'")), "{text}");
    }
    reason(403, f.try_declare(Queue::classic("amq.gen")).await);
    f.declare(Queue::quorum("q").argument("x-dead-letter-strategy", "at-least-once")).await;
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_queue_is_locked_for_every_other_link() {
    let f = Fixture::with_queue(Queue::classic("q").exclusive()).await;
    let other = f.dial().await;

    let redeclared = other.declare(&bare(Queue::classic("q").exclusive())).await;
    assert!(reason(405, redeclared).starts_with("RESOURCE_LOCKED - cannot obtain exclusive"));
    reason(405, other.subscribe(super::subscribe("q", 1)).await.map(drop));
    reason(405, other.inspect("q").await.map(drop));
    reason(405, other.delete_queue("q").await);
    reason(405, other.declare(&Topology::new().bind("q", "amq.direct", "k")).await);
    reason(405, other.pull("q").await.unwrap().next().await.map(drop));
    // Publishing to it is not restricted.
    other.publish(message("q", "x")).await.unwrap();

    // To its owner the flag alone is the same refusal; it is never durable.
    reason(405, f.try_declare(Queue::classic("q")).await);
    f.declare(Queue::classic("q").exclusive().transient()).await;
    f.link.close().await;
    assert_eq!(other.inspect("q").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_binding_needs_both_ends() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    for (queue, exchange, missing) in [
        ("nope", "amq.direct", "no queue 'nope'"),
        ("q", "nope", "no exchange 'nope'"),
        ("nope", "nope", "no exchange 'nope'"),
    ] {
        let refused = f.link.declare(&Topology::new().bind(queue, exchange, "k")).await;
        let Err(Error::NotFound { reason }) = refused else { panic!("{refused:?}") };
        assert_eq!(reason, format!("NOT_FOUND - {missing} in vhost '/'"));
    }
    reason(403, f.link.declare(&Topology::new().bind("q", "", "k")).await);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_queue_takes_its_bindings_along_and_ends_its_consumers() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.link.declare(&Topology::new().bind("q", "amq.direct", "k")).await.unwrap();
    let mut consumer = consume(&f.link, "q", 1).await;
    f.send("q", &["one", "two"]).await;
    let one = sent(&mut consumer).remove(0);

    f.link.delete_queue("q").await.unwrap();
    f.link.delete_queue("q").await.unwrap();

    let end = futures::StreamExt::next(&mut consumer.deliveries).await;
    let Some(Err(Error::NotFound { reason })) = end else { panic!("{end:?}") };
    assert_eq!(reason, "consumer cancelled by the broker: queue `q` was deleted");
    assert!(futures::StreamExt::next(&mut consumer.deliveries).await.is_none());
    // The channel lives on: what it holds can be settled, to no effect on a new queue.
    f.declare(Queue::classic("q")).await;
    one.settle.nack(true).await.unwrap();
    assert!(f.ready("q").is_empty());
    let unbound = f.link.publish(to("amq.direct", "k", "x")).await;
    assert!(matches!(unbound, Err(Error::Unroutable { .. })));
}

#[tokio::test(start_paused = true)]
async fn inspecting_counts_ready_messages_and_consumers() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    f.send("q", &["1", "2", "3"]).await;
    let _consumer = consume(&f.link, "q", 1).await;

    let info = f.link.inspect("q").await.unwrap();

    assert_eq!(info, Some(QueueInfo { messages: 2, consumers: 1 }));
    assert_eq!(f.broker.unsettled("q"), 1);
    assert_eq!(f.link.inspect("nope").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn an_auto_deleted_queue_goes_with_its_last_consumer() {
    let f = Fixture::with_queue(Queue::classic("q").auto_delete()).await;
    drop(f.link.pull("q").await.unwrap());
    let one = consume(&f.link, "q", 1).await;
    let two = consume(&f.link, "q", 1).await;

    one.control.cancel().await.unwrap();
    assert_eq!(f.broker.queue_names(), ["q"]);
    two.control.close().await;
    assert!(f.broker.queue_names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_auto_deleted_exchange_goes_with_its_last_binding() {
    let f = Fixture::new().await;
    let topology = Topology::new()
        .exchange(Exchange::direct("x").auto_delete())
        .queue(Queue::classic("one"))
        .queue(Queue::classic("two"))
        .bind("one", "x", "k")
        .bind("two", "x", "k");
    f.link.declare(&topology).await.unwrap();

    f.link.delete_queue("one").await.unwrap();
    f.link.publish(to("x", "k", "still there")).await.unwrap();
    f.link.delete_queue("two").await.unwrap();

    let gone = f.link.publish(to("x", "k", "gone")).await;
    assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
}
