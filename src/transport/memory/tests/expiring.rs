//! Messages and queues that expire.

use futures::StreamExt;
use tokio::time::{Instant, advance};

use super::{Fixture, bodies, consume, expiring, ms, sent};
use crate::topology::Queue;

fn kinds() -> [Queue; 2] {
    [Queue::classic("q"), Queue::quorum("q")]
}

/// A queue that dead-letters to `dead`.
async fn fixture(queue: Queue) -> Fixture {
    let f = Fixture::with_queue(queue.dead_letter_to("", "dead")).await;
    f.declare(Queue::classic("dead")).await;
    f
}

#[tokio::test(start_paused = true)]
async fn a_message_expires_on_time_without_a_consumer_of_its_queue() {
    for queue in kinds() {
        let f = fixture(queue.message_ttl(ms(4 * 3_600_000))).await;
        let mut dead = consume(&f.link, "dead", 1).await;
        let published = Instant::now();
        f.send("q", &["x"]).await;

        let delivery = dead.deliveries.next().await.unwrap().unwrap();

        assert_eq!(delivery.body, "x");
        assert_eq!(published.elapsed(), ms(4 * 3_600_000));
    }
}

#[tokio::test(start_paused = true)]
async fn the_smaller_of_both_ttls_counts() {
    for (own, after) in [("50", 50), ("500", 100)] {
        let f = fixture(Queue::classic("q").message_ttl(ms(100))).await;
        f.link.publish(expiring("q", "x", own)).await.unwrap();
        advance(ms(after - 1)).await;
        assert_eq!(f.ready("q").len(), 1);
        advance(ms(1)).await;
        assert_eq!((f.ready("q").len(), f.ready("dead").len()), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_head_of_a_queue_expires() {
    for queue in kinds() {
        let f = fixture(queue).await;
        f.link.publish(expiring("q", "long", "900")).await.unwrap();
        f.link.publish(expiring("q", "short", "50")).await.unwrap();

        advance(ms(899)).await;
        assert_eq!(f.ready("q"), ["long", "short"]);
        advance(ms(1)).await;
        assert_eq!(f.ready("dead"), ["long", "short"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_becomes_the_head_too_late_is_not_delivered() {
    let f = fixture(Queue::classic("q")).await;
    f.link.publish(expiring("q", "long", "900")).await.unwrap();
    f.link.publish(expiring("q", "short", "50")).await.unwrap();
    advance(ms(100)).await;

    let mut consumer = consume(&f.link, "q", 10).await;

    assert_eq!(bodies(&sent(&mut consumer)), "long");
    assert_eq!(f.ready("dead"), ["short"]);
}

#[tokio::test(start_paused = true)]
async fn a_delivered_message_does_not_expire_until_it_comes_back() {
    for queue in kinds() {
        let f = fixture(queue).await;
        f.link.publish(expiring("q", "x", "50")).await.unwrap();
        let (delivery, _pull) = f.take("q").await;
        advance(ms(100)).await;
        assert_eq!(f.broker.unsettled("q"), 1);

        delivery.settle.nack(true).await.unwrap();
        assert_eq!((f.ready("q").len(), f.ready("dead").len()), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_ttl_of_zero_means_to_a_waiting_consumer_or_never() {
    for queue in kinds() {
        let f = fixture(queue.message_ttl(ms(0))).await;
        f.send("q", &["nobody"]).await;
        // In a quorum queue it is a millisecond.
        advance(ms(1)).await;
        assert_eq!(f.ready("dead"), ["nobody"]);

        let mut consumer = consume(&f.link, "q", 1).await;
        f.send("q", &["taken", "no room"]).await;
        let taken = sent(&mut consumer);
        assert_eq!(bodies(&taken), "taken");
        advance(ms(1)).await;
        assert_eq!(f.ready("dead"), ["nobody", "no room"]);

        taken.into_iter().next().unwrap().settle.nack(true).await.unwrap();
        assert!(sent(&mut consumer).is_empty());
        assert_eq!(f.ready("dead"), ["nobody", "no room", "taken"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_earlier_deadline_wakes_the_timer() {
    let f = fixture(Queue::classic("q")).await;
    f.declare(Queue::classic("slow").message_ttl(ms(60_000)).dead_letter_to("", "dead")).await;
    let mut dead = consume(&f.link, "dead", 10).await;
    let started = Instant::now();
    f.send("slow", &["slow"]).await;
    // The timer sleeps for the slow one by now.
    tokio::task::yield_now().await;
    f.link.publish(expiring("q", "fast", "20")).await.unwrap();

    assert_eq!(dead.deliveries.next().await.unwrap().unwrap().body, "fast");
    assert_eq!(started.elapsed(), ms(20));
    assert_eq!(dead.deliveries.next().await.unwrap().unwrap().body, "slow");
    assert_eq!(started.elapsed(), ms(60_000));
}

#[tokio::test(start_paused = true)]
async fn time_passes_as_long_as_one_link_is_left() {
    let f = fixture(Queue::classic("q").message_ttl(ms(100))).await;
    let other = f.dial().await;
    let mut dead = consume(&other, "dead", 1).await;
    f.send("q", &["x"]).await;

    f.link.close().await;

    assert_eq!(dead.deliveries.next().await.unwrap().unwrap().body, "x");
}

#[tokio::test(start_paused = true)]
async fn what_expired_while_nobody_was_connected_is_gone_for_the_next() {
    let f = fixture(Queue::classic("q").message_ttl(ms(100))).await;
    f.send("q", &["x"]).await;
    f.link.close().await;
    advance(ms(100)).await;

    let link = f.dial().await;
    assert_eq!(link.inspect("q").await.unwrap().unwrap().messages, 0);
    assert_eq!(link.inspect("dead").await.unwrap().unwrap().messages, 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_ttl_is_ten_years() {
    let ten_years = 315_360_000_000;
    let f = fixture(Queue::classic("q").message_ttl(ms(ten_years))).await;
    let mut dead = consume(&f.link, "dead", 1).await;
    let started = Instant::now();
    f.send("q", &["x"]).await;
    assert_eq!(dead.deliveries.next().await.unwrap().unwrap().body, "x");
    assert_eq!(started.elapsed(), ms(ten_years));
}

#[tokio::test(start_paused = true)]
async fn an_unused_queue_is_deleted_with_its_messages() {
    for queue in kinds() {
        let f = Fixture::with_queue(queue.expires(ms(100)).dead_letter_to("", "dead")).await;
        f.declare(Queue::classic("dead")).await;
        f.send("q", &["x"]).await;

        advance(ms(99)).await;
        assert_eq!(f.broker.queue_names(), ["dead", "q"]);
        advance(ms(1)).await;
        assert_eq!(f.broker.queue_names(), ["dead"]);
        assert!(f.ready("dead").is_empty(), "a deleted queue's messages are not dead letters");
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_keeps_a_queue_and_its_end_starts_the_clock() {
    let f = Fixture::with_queue(Queue::classic("q").expires(ms(100))).await;
    let consumer = consume(&f.link, "q", 1).await;
    advance(ms(1000)).await;
    assert_eq!(f.broker.queue_names(), ["q"]);

    consumer.control.cancel().await.unwrap();
    advance(ms(99)).await;
    assert_eq!(f.broker.queue_names(), ["q"]);
    advance(ms(1)).await;
    assert!(f.broker.queue_names().is_empty());
}

/// Returns whether a use in the middle of a queue's life keeps it alive.
async fn survives(queue: Queue, usage: &str) -> bool {
    let f = Fixture::with_queue(queue.clone().expires(ms(100))).await;
    f.send("q", &["w", "x"]).await;
    let (delivery, mut pull) = f.take("q").await;
    let mut held = Some(delivery.settle);
    if !matches!(usage, "ack" | "hold") {
        held.take().unwrap().ack().await.unwrap();
    }
    advance(ms(60)).await;
    match usage {
        "get" => drop(pull.next().await.unwrap()),
        "declare" => f.declare(queue.expires(ms(100))).await,
        "inspect" => drop(f.link.inspect("q").await.unwrap()),
        "publish" => f.send("q", &["y"]).await,
        "ack" => held.take().unwrap().ack().await.unwrap(),
        _ => {}
    }
    advance(ms(60)).await;
    !f.broker.queue_names().is_empty()
}

#[tokio::test(start_paused = true)]
async fn what_counts_as_use_depends_on_the_kind_of_queue() {
    // As RabbitMQ 3.10.8 counts it.
    for (usage, classic, quorum) in [
        ("nothing", false, false),
        ("get", true, true),
        ("declare", true, false),
        ("inspect", true, false),
        ("publish", false, false),
        ("ack", false, true),
        ("hold", false, true),
    ] {
        assert_eq!(survives(Queue::classic("q"), usage).await, classic, "classic, {usage}");
        assert_eq!(survives(Queue::quorum("q"), usage).await, quorum, "quorum, {usage}");
    }
}
