//! Where dead messages go, and what is written on them.

use tokio::time::advance;

use super::{Fixture, deaths, expiring, message, ms};
use crate::{
    message::{HeaderValue, Headers, Properties},
    topology::{Exchange, Queue, Topology},
    transport::Transport,
};

async fn reject_next(f: &Fixture, queue: &str) {
    let (delivery, _pull) = f.take(queue).await;
    delivery.settle.nack(false).await.unwrap();
}

fn only(f: &Fixture, queue: &str) -> Properties {
    let mut messages = f.broker.messages(queue);
    assert_eq!(messages.len(), 1, "messages in {queue}");
    messages.remove(0).1
}

fn first_death(properties: &Properties) -> Headers {
    match properties.headers.get("x-death") {
        Some(HeaderValue::List(deaths)) => match &deaths[0] {
            HeaderValue::Table(death) => death.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_death_is_recorded_as_rabbitmq_does() {
    for queue in [Queue::classic("q"), Queue::quorum("q")] {
        let f = Fixture::with_queue(queue.dead_letter_to("", "dead")).await;
        f.declare(Queue::classic("dead")).await;
        f.link.declare(&Topology::new().bind("q", "amq.direct", "key")).await.unwrap();
        let mut outgoing = super::to("amq.direct", "key", "x");
        outgoing.properties.expiration = Some("60000".into());
        outgoing.properties.headers.insert("own", 1);
        f.link.publish(outgoing.clone()).await.unwrap();

        reject_next(&f, "q").await;

        let properties = only(&f, "dead");
        let now = f.transport.clock().now().timestamp();
        let wanted = Headers::from_iter([
            ("count", HeaderValue::Long(1)),
            ("reason", "rejected".into()),
            ("queue", "q".into()),
            ("time", HeaderValue::Timestamp(now.unsigned_abs())),
            ("exchange", "amq.direct".into()),
            ("routing-keys", HeaderValue::List(vec!["key".into()])),
            ("original-expiration", "60000".into()),
        ]);
        assert_eq!(first_death(&properties), wanted);
        assert_eq!(properties.headers.text("x-first-death-reason"), Some("rejected"));
        assert_eq!(properties.headers.text("x-first-death-queue"), Some("q"));
        assert_eq!(properties.headers.text("x-first-death-exchange"), Some("amq.direct"));
        assert_eq!(properties.headers.get("own"), Some(&HeaderValue::Int(1)));
        assert_eq!(properties.headers.len(), 5);
        assert_eq!(properties.expiration, None);
        let but_headers = Properties { headers: Headers::new(), expiration: None, ..properties };
        let headers = Headers::new();
        assert_eq!(but_headers, Properties { headers, expiration: None, ..outgoing.properties });
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_message_lives_on_in_its_next_queue() {
    let f = Fixture::with_queue(Queue::classic("q").dead_letter_to("", "dead")).await;
    f.declare(Queue::classic("dead")).await;
    f.link.publish(expiring("q", "x", "10")).await.unwrap();

    advance(ms(1_000_000)).await;

    let properties = only(&f, "dead");
    assert_eq!(deaths(&properties), ["q expired 1"]);
    assert_eq!(first_death(&properties).text("original-expiration"), Some("10"));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_delivered_as_new_from_its_dead_letter_exchange() {
    let f = Fixture::new().await;
    let topology = Topology::new()
        .exchange(Exchange::topic("dlx"))
        .queue(Queue::classic("q").argument("x-dead-letter-exchange", "dlx"))
        .queue(Queue::classic("dead"))
        .bind("dead", "dlx", "#");
    f.link.declare(&topology).await.unwrap();
    f.send("q", &["x"]).await;

    reject_next(&f, "q").await;

    let (delivery, _pull) = f.take("dead").await;
    assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), ("dlx", "q"));
    assert!(!delivery.redelivered);
}

#[tokio::test(start_paused = true)]
async fn deaths_of_one_queue_and_reason_are_counted_and_come_to_the_front() {
    let f = Fixture::with_queue(Queue::classic("one").dead_letter_to("", "two")).await;
    f.declare(Queue::classic("two").dead_letter_to("", "one")).await;
    f.send("one", &["x"]).await;

    for queue in ["one", "two", "one", "two", "one"] {
        reject_next(&f, queue).await;
        advance(ms(5000)).await;
    }

    let properties = only(&f, "two");
    assert_eq!(deaths(&properties), ["one rejected 3", "two rejected 2"]);
    assert_eq!(properties.headers.text("x-first-death-queue"), Some("one"));
    let first = f.transport.clock().now().timestamp() - 25;
    let time = first_death(&properties).get("time").cloned();
    assert_eq!(time, Some(HeaderValue::Timestamp(first.unsigned_abs())), "that of the first");
}

#[tokio::test(start_paused = true)]
async fn different_reasons_are_different_entries() {
    let f = Fixture::with_queue(Queue::classic("q").dead_letter_to("", "q")).await;
    f.link.publish(expiring("q", "x", "10")).await.unwrap();
    reject_next(&f, "q").await;
    assert_eq!(deaths(&only(&f, "q")), ["q rejected 1"]);

    let (_, mut properties, body) = f.broker.messages("q").remove(0);
    let (taken, _pull) = f.take("q").await;
    taken.settle.ack().await.unwrap();
    properties.expiration = Some("10".into());
    f.declare(Queue::classic("dead")).await;
    f.declare(Queue::classic("other").dead_letter_to("", "dead")).await;
    let again = crate::transport::Outgoing { properties, body, ..message("other", "") };
    f.link.publish(again).await.unwrap();
    advance(ms(10)).await;

    let properties = only(&f, "dead");
    assert_eq!(deaths(&properties), ["other expired 1", "q rejected 1"]);
    assert_eq!(properties.headers.text("x-first-death-reason"), Some("rejected"));
}

#[tokio::test(start_paused = true)]
async fn a_cycle_without_a_reject_ends() {
    let f =
        Fixture::with_queue(Queue::classic("one").message_ttl(ms(50)).dead_letter_to("", "two"))
            .await;
    f.declare(Queue::quorum("two").message_ttl(ms(50)).dead_letter_to("", "one")).await;
    f.send("one", &["x"]).await;

    advance(ms(50)).await;
    assert_eq!((f.ready("one").len(), f.ready("two").len()), (0, 1));
    advance(ms(50)).await;
    assert_eq!((f.ready("one").len(), f.ready("two").len()), (0, 0), "dropped as a cycle");
}

#[tokio::test(start_paused = true)]
async fn a_cycle_with_a_reject_goes_on() {
    let f = Fixture::with_queue(Queue::classic("work").dead_letter_to("", "wait")).await;
    f.declare(Queue::classic("wait").message_ttl(ms(50)).dead_letter_to("", "work")).await;
    f.send("work", &["x"]).await;

    for round in 1..=50_i64 {
        reject_next(&f, "work").await;
        advance(ms(50)).await;
        let wanted = [format!("wait expired {round}"), format!("work rejected {round}")];
        assert_eq!(deaths(&only(&f, "work")), wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reject_before_a_ring_saves_a_message_from_it_because_the_history_turns() {
    let f =
        Fixture::with_queue(Queue::classic("one").message_ttl(ms(50)).dead_letter_to("", "two"))
            .await;
    f.declare(Queue::classic("two").message_ttl(ms(50)).dead_letter_to("", "one")).await;
    f.declare(Queue::classic("start").dead_letter_to("", "one")).await;
    f.send("start", &["x"]).await;
    reject_next(&f, "start").await;

    advance(ms(50)).await;
    assert_eq!(deaths(&only(&f, "two")), ["one expired 1", "start rejected 1"]);
    advance(ms(50)).await;
    let turned = ["two expired 1", "start rejected 1", "one expired 1"];
    assert_eq!(deaths(&only(&f, "one")), turned);
}

#[tokio::test(start_paused = true)]
async fn a_fresh_publish_without_the_history_starts_a_cycle_anew() {
    let f =
        Fixture::with_queue(Queue::classic("hop").message_ttl(ms(50)).dead_letter_to("", "due"))
            .await;
    f.declare(Queue::classic("due")).await;
    for _ in 0..50 {
        f.send("hop", &["x"]).await;
        advance(ms(50)).await;
        let (delivery, _pull) = f.take("due").await;
        assert_eq!(deaths(&delivery.properties), ["hop expired 1"]);
        delivery.settle.ack().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn queues_of_ttl_zero_in_a_ring_do_not_hang_the_broker() {
    let f = Fixture::with_queue(Queue::classic("one").message_ttl(ms(0)).dead_letter_to("", "two"))
        .await;
    f.declare(Queue::classic("two").message_ttl(ms(0)).dead_letter_to("", "one")).await;
    f.send("one", &["x"]).await;
    assert_eq!((f.ready("one").len(), f.ready("two").len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_nobody_takes_is_dropped() {
    for target in ["nope", "amq.direct"] {
        let f = Fixture::with_queue(Queue::classic("q").dead_letter_to(target, "nowhere")).await;
        f.send("q", &["x"]).await;
        reject_next(&f, "q").await;
        assert_eq!((f.ready("q").len(), f.broker.unsettled("q")), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_history_that_a_client_wrote_is_counted_on_or_replaced() {
    let entry = |count: i64| {
        HeaderValue::Table(Headers::from_iter([
            ("queue", HeaderValue::from("q")),
            ("reason", "expired".into()),
            ("count", count.into()),
        ]))
    };
    for (history, wanted) in [
        (HeaderValue::from("bogus"), "q expired 1"),
        (HeaderValue::List(vec![entry(5), entry(3)]), "q expired 6"),
    ] {
        let f = Fixture::with_queue(Queue::classic("q").dead_letter_to("", "dead")).await;
        f.declare(Queue::classic("dead")).await;
        let mut outgoing = expiring("q", "x", "0");
        outgoing.properties.headers.insert("x-death", history);
        f.link.publish(outgoing).await.unwrap();
        let properties = only(&f, "dead");
        assert_eq!(deaths(&properties), [wanted]);
        assert!(properties.headers.get("x-first-death-queue").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn further_routing_keys_are_recorded_and_dropped_for_a_target_key() {
    let f = Fixture::with_queue(Queue::classic("q").dead_letter_to("", "dead")).await;
    f.declare(Queue::classic("dead")).await;
    let mut outgoing = message("q", "x");
    outgoing.properties.headers.insert("CC", HeaderValue::List(vec!["more".into()]));
    f.link.publish(outgoing).await.unwrap();

    reject_next(&f, "q").await;

    let properties = only(&f, "dead");
    let keys = HeaderValue::List(vec!["q".into(), "more".into()]);
    assert_eq!(first_death(&properties).get("routing-keys"), Some(&keys));
    assert!(properties.headers.get("CC").is_none());
}
