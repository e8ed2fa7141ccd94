//! Length limits and delivery limits.

use super::{Fixture, deaths, expiring, message, ms};
use crate::{
    error::Error,
    topology::{Overflow, Queue, Topology},
};

/// Publishes until something changes, and says what was accepted: `+` or `-`.
async fn publish(f: &Fixture, times: usize) -> String {
    let mut answers = String::new();
    for _ in 0..times {
        answers.push(match f.link.publish(message("q", "x")).await {
            Ok(()) => '+',
            Err(Error::Nacked { exchange, routing_key }) => {
                assert_eq!((exchange.as_str(), routing_key.as_str()), ("", "q"));
                '-'
            }
            Err(other) => panic!("{other}"),
        });
    }
    answers
}

async fn take_and_ack(f: &Fixture) {
    let (delivery, _pull) = f.take("q").await;
    delivery.settle.ack().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_classic_queue_nacks_and_takes_again_when_there_is_room() {
    let f = Fixture::with_queue(Queue::classic("q").max_length(3, Overflow::RejectPublish)).await;
    assert_eq!(publish(&f, 5).await, "+++--");
    take_and_ack(&f).await;
    assert_eq!(publish(&f, 2).await, "+-");
}

#[tokio::test(start_paused = true)]
async fn only_ready_messages_count() {
    let f = Fixture::with_queue(Queue::classic("q").max_length(1, Overflow::RejectPublish)).await;
    assert_eq!(publish(&f, 2).await, "+-");
    let _held = f.take("q").await;
    assert_eq!(publish(&f, 2).await, "+-");
}

#[tokio::test(start_paused = true)]
async fn a_quorum_queue_overshoots_by_one_and_resumes_at_four_fifths() {
    let f = Fixture::with_queue(Queue::quorum("q").max_length(10, Overflow::RejectPublish)).await;
    // As RabbitMQ 3.10.8 answers one publisher.
    assert_eq!(publish(&f, 15).await, "+++++++++++----");
    for answers in ["--", "--", "++", "++", "--"] {
        take_and_ack(&f).await;
        assert_eq!(publish(&f, 2).await, answers);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_for_a_full_and_a_free_queue_is_nacked_and_kept_by_the_free_one() {
    let f = Fixture::with_queue(Queue::classic("q").max_length(0, Overflow::RejectPublish)).await;
    f.declare(Queue::classic("free")).await;
    let bindings = Topology::new().bind("q", "amq.fanout", "").bind("free", "amq.fanout", "");
    f.link.declare(&bindings).await.unwrap();

    let answer = f.link.publish(super::to("amq.fanout", "", "x")).await;

    assert!(matches!(answer, Err(Error::Nacked { .. })), "{answer:?}");
    assert_eq!((f.ready("q").len(), f.ready("free").len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_for_a_full_queue_is_lost_in_a_classic_and_kept_in_a_quorum_queue() {
    for (queue, kept) in [(Queue::classic("full"), 0), (Queue::quorum("full"), 1)] {
        let f = Fixture::with_queue(queue.max_length(0, Overflow::RejectPublish)).await;
        f.declare(Queue::classic("q").dead_letter_to("", "full")).await;
        f.link.publish(expiring("q", "x", "10")).await.unwrap();
        tokio::time::advance(ms(10)).await;
        assert_eq!(f.ready("full").len(), kept);
    }
}

/// Requeues a message until it does not come back.
async fn deliveries(f: &Fixture) -> usize {
    let mut pull = f.link.pull("q").await.unwrap();
    let mut count = 0;
    while let Some(delivery) = pull.next().await.unwrap() {
        count += 1;
        delivery.settle.nack(true).await.unwrap();
    }
    count
}

#[tokio::test(start_paused = true)]
async fn a_message_over_the_delivery_limit_is_dead_lettered() {
    for limit in [0, 1, 2] {
        let queue = Queue::quorum("q").dead_letter_to("", "dead").delivery_limit(limit);
        let f = Fixture::with_queue(queue).await;
        f.declare(Queue::classic("dead")).await;
        f.send("q", &["x"]).await;

        assert_eq!(deliveries(&f).await, limit as usize + 1);

        let (_, properties, _) = f.broker.messages("dead").remove(0);
        assert_eq!(deaths(&properties), ["q delivery_limit 1"]);
        assert!(properties.headers.get("x-delivery-count").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_delivery_limit_a_message_is_delivered_for_ever() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    f.send("q", &["x"]).await;
    for _ in 0..50 {
        let (delivery, _pull) = f.take("q").await;
        delivery.settle.nack(true).await.unwrap();
    }
    assert_eq!(f.ready("q"), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn neighbours_of_a_poison_message_are_counted_when_their_channel_closes() {
    let f = Fixture::with_queue(Queue::quorum("q").delivery_limit(1)).await;
    f.send("q", &["poison", "good"]).await;
    for left in [2, 0] {
        let consumer = super::consume(&f.link, "q", 10).await;
        consumer.control.close().await;
        assert_eq!(f.ready("q").len(), left);
    }
}
