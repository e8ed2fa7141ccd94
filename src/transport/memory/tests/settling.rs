//! Acks, nacks, returns, and who may still settle.

use super::{Fixture, bodies, consume, sent};
use crate::{error::Error, message::HeaderValue, topology::Queue, transport::Delivery};

/// Takes four of six messages on one channel.
async fn four_of_six(queue: Queue) -> (Fixture, Vec<Delivery>, Box<dyn crate::transport::Pull>) {
    let f = Fixture::with_queue(queue).await;
    f.send("q", &["0", "1", "2", "3", "4", "5"]).await;
    let mut pull = f.link.pull("q").await.unwrap();
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(pull.next().await.unwrap().unwrap());
    }
    (f, taken, pull)
}

/// Requeues 2, 0 and 3, and keeps 1.
async fn requeue_three(taken: Vec<Delivery>) -> Delivery {
    let [zero, one, two, three] = <[Delivery; 4]>::try_from(taken).unwrap();
    for delivery in [two, zero, three] {
        delivery.settle.nack(true).await.unwrap();
    }
    one
}

#[tokio::test(start_paused = true)]
async fn a_classic_queue_puts_requeued_messages_where_they_were() {
    let (f, taken, pull) = four_of_six(Queue::classic("q")).await;
    let _one = requeue_three(taken).await;
    assert_eq!(f.ready("q"), ["0", "2", "3", "4", "5"]);
    pull.close().await;
    assert_eq!(f.ready("q"), ["0", "1", "2", "3", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn a_quorum_queue_without_a_limit_puts_requeued_messages_at_the_end() {
    let (f, taken, pull) = four_of_six(Queue::quorum("q")).await;
    let _one = requeue_three(taken).await;
    assert_eq!(f.ready("q"), ["4", "5", "2", "0", "3"]);
    drop(pull);
    assert_eq!(f.ready("q"), ["1", "4", "5", "2", "0", "3"], "abandoned ones go first");
}

#[tokio::test(start_paused = true)]
async fn closing_a_pull_requeues_what_it_has() {
    let (f, _taken, pull) = four_of_six(Queue::quorum("q")).await;
    pull.close().await;
    assert_eq!(f.ready("q"), ["4", "5", "0", "1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_quorum_queue_with_a_limit_puts_requeued_messages_first() {
    let (f, taken, pull) = four_of_six(Queue::quorum("q").delivery_limit(5)).await;
    let _one = requeue_three(taken).await;
    assert_eq!(f.ready("q"), ["2", "0", "3", "4", "5"]);
    pull.close().await;
    assert_eq!(f.ready("q"), ["2", "0", "3", "1", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_closed_channel_come_back_in_their_order_and_marked() {
    for queue in [Queue::classic("q"), Queue::quorum("q")] {
        let (f, taken, pull) = four_of_six(queue).await;
        drop(taken);
        drop(pull);
        let mut consumer = consume(&f.link, "q", 10).await;
        assert_eq!(bodies(&sent(&mut consumer)), "0r 1r 2r 3r 4 5");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_delivery_stays_unsettled_until_its_channel_closes() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.send("q", &["x"]).await;
    let (delivery, pull) = f.take("q").await;

    drop(delivery);
    assert_eq!((f.broker.unsettled("q"), f.ready("q").len()), (1, 0));
    drop(pull);
    assert_eq!((f.broker.unsettled("q"), f.ready("q").len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn an_ack_of_a_closed_channel_fails_and_settles_nothing() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.send("q", &["1", "2"]).await;
    let (old, pull) = f.take("q").await;
    pull.close().await;
    let (_same, _pull) = f.take("q").await;

    let late = old.settle.ack().await.unwrap_err();

    assert!(matches!(late, Error::Interrupted { .. }), "{late}");
    assert_eq!((f.broker.unsettled("q"), f.ready("q").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn settling_takes_effect_when_it_is_awaited() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.send("q", &["x"]).await;
    let (delivery, _pull) = f.take("q").await;
    drop(delivery.settle.ack());
    assert_eq!(f.broker.unsettled("q"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reject_without_a_dead_letter_target_drops_the_message() {
    for queue in [Queue::classic("q"), Queue::quorum("q")] {
        let f = Fixture::with_queue(queue).await;
        f.send("q", &["x"]).await;
        let (delivery, _pull) = f.take("q").await;
        delivery.settle.nack(false).await.unwrap();
        assert_eq!((f.broker.unsettled("q"), f.ready("q").len()), (0, 0));
    }
}

fn delivery_count(delivery: &Delivery) -> Option<i64> {
    delivery.properties.headers.get("x-delivery-count").and_then(HeaderValue::as_i64)
}

#[tokio::test(start_paused = true)]
async fn a_quorum_queue_tells_how_often_it_delivered_before() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    let mut consumer = consume(&f.link, "q", 1).await;
    f.send("q", &["x"]).await;

    for returns in [None, Some(1), Some(2)] {
        let delivery = sent(&mut consumer).remove(0);
        assert_eq!(delivery_count(&delivery), returns);
        assert_eq!(delivery.redelivered, returns.is_some());
        delivery.settle.nack(true).await.unwrap();
    }
    consumer.control.close().await;
    let (delivery, _pull) = f.take("q").await;
    assert_eq!(delivery_count(&delivery), Some(4), "an abandoned delivery counts");
}

#[tokio::test(start_paused = true)]
async fn a_pulled_first_delivery_of_a_quorum_queue_has_a_count_of_zero() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    f.send("q", &["x"]).await;
    let (delivery, _pull) = f.take("q").await;
    assert_eq!((delivery_count(&delivery), delivery.redelivered), (Some(0), false));
}

#[tokio::test(start_paused = true)]
async fn a_classic_queue_counts_nothing_and_keeps_a_publishers_header() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let mut outgoing = super::message("q", "x");
    outgoing.properties.headers.insert("x-delivery-count", 7);
    f.link.publish(outgoing).await.unwrap();

    let (first, pull) = f.take("q").await;
    first.settle.nack(true).await.unwrap();
    drop(pull);
    let (second, _pull) = f.take("q").await;

    assert_eq!((delivery_count(&second), second.redelivered), (Some(7), true));
}

#[tokio::test(start_paused = true)]
async fn pulling_an_empty_queue_gives_nothing() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    let mut pull = f.link.pull("q").await.unwrap();
    assert!(pull.next().await.unwrap().is_none());
    f.declare(Queue::quorum("single").single_active_consumer()).await;
    let refused = f.link.pull("single").await.unwrap().next().await;
    assert!(matches!(refused, Err(Error::BrokerRefused { code: 405, .. })), "{refused:?}");
}
