//! Who gets which message.

use futures::StreamExt;

use super::{Fixture, bodies, consume, sent, subscribe};
use crate::{
    error::Error,
    message::Headers,
    topology::Queue,
    transport::{Delivery, Subscription},
};

fn kinds() -> [Queue; 2] {
    [Queue::classic("q"), Queue::quorum("q")]
}

async fn ack_all(deliveries: Vec<Delivery>) {
    for delivery in deliveries {
        delivery.settle.ack().await.unwrap();
    }
}

/// The bodies that two consumers get now.
fn pair(a: &mut Subscription, b: &mut Subscription) -> (String, String) {
    (bodies(&sent(a)), bodies(&sent(b)))
}

#[tokio::test(start_paused = true)]
async fn prefetch_bounds_what_a_consumer_holds() {
    for queue in kinds() {
        let f = Fixture::with_queue(queue).await;
        f.send("q", &["1", "2", "3", "4"]).await;
        let mut consumer = consume(&f.link, "q", 2).await;

        let mut first = sent(&mut consumer);
        assert_eq!(bodies(&first), "1 2");
        first.remove(0).settle.ack().await.unwrap();
        let more = sent(&mut consumer);
        assert_eq!(bodies(&more), "3");
        assert_eq!(f.broker.unsettled("q"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn consumers_with_room_get_messages_in_turn() {
    for queue in kinds() {
        let f = Fixture::with_queue(queue).await;
        let mut a = consume(&f.link, "q", 3).await;
        let mut b = consume(&f.link, "q", 1).await;
        let mut c = consume(&f.link, "q", 5).await;

        f.send("q", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await;

        // As RabbitMQ 3.10.8 deals them out.
        assert_eq!(bodies(&sent(&mut a)), "0 3 5");
        assert_eq!(bodies(&sent(&mut b)), "1");
        assert_eq!(bodies(&sent(&mut c)), "2 4 6 7 8");
        assert_eq!(f.ready("q"), ["9"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_consumer_is_woken_by_a_publish() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let mut consumer = consume(&f.link, "q", 1).await;
    let waiting = tokio::spawn(async move { consumer.deliveries.next().await });
    tokio::task::yield_now().await;

    f.send("q", &["x"]).await;

    assert_eq!(waiting.await.unwrap().unwrap().unwrap().body, "x");
}

#[tokio::test(start_paused = true)]
async fn a_missing_queue_is_told_in_rabbitmqs_words() {
    let f = Fixture::new().await;
    let wanted = "NOT_FOUND - no queue 'nope' in vhost '/'";
    let Err(Error::NotFound { reason }) = f.link.subscribe(subscribe("nope", 1)).await.map(drop)
    else {
        panic!()
    };
    assert_eq!(reason, wanted);
    let pulled = f.link.pull("nope").await.unwrap().next().await;
    let Err(Error::NotFound { reason }) = pulled else { panic!("{pulled:?}") };
    assert_eq!(reason, wanted);
}

#[tokio::test(start_paused = true)]
async fn after_a_cancel_the_stream_gives_what_was_sent_and_ends() {
    for queue in kinds() {
        let f = Fixture::with_queue(queue).await;
        f.send("q", &["1", "2", "3"]).await;
        let mut consumer = consume(&f.link, "q", 2).await;

        consumer.control.cancel().await.unwrap();
        consumer.control.cancel().await.unwrap();

        let one = consumer.deliveries.next().await.unwrap().unwrap();
        let two = consumer.deliveries.next().await.unwrap().unwrap();
        assert!(consumer.deliveries.next().await.is_none());
        one.settle.ack().await.unwrap();
        two.settle.nack(false).await.unwrap();
        assert_eq!(f.ready("q"), ["3"]);
        assert_eq!(f.broker.unsettled("q"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_channel_is_closed_ends_with_one_error() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let mut consumer = consume(&f.link, "q", 2).await;

    consumer.control.close().await;
    consumer.control.close().await;

    assert!(matches!(consumer.deliveries.next().await, Some(Err(Error::Interrupted { .. }))));
    assert!(consumer.deliveries.next().await.is_none());
    assert!(matches!(consumer.control.cancel().await, Err(Error::Interrupted { .. })));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_control_gives_unsettled_messages_back() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.send("q", &["1", "2", "3"]).await;
    let Subscription { mut deliveries, control } = consume(&f.link, "q", 2).await;
    let one = deliveries.next().await.unwrap().unwrap();

    drop(deliveries);
    assert_eq!(f.ready("q"), ["3"], "the stream alone is not the channel");
    drop(control);

    assert_eq!(f.ready("q"), ["1", "2", "3"]);
    assert!(matches!(one.settle.ack().await, Err(Error::Interrupted { .. })));
    assert_eq!(f.ready("q"), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_consumer_of_a_classic_queue_is_the_only_one() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let exclusive = || crate::transport::Subscribe { exclusive: true, ..subscribe("q", 1) };
    let refused = |result: crate::Result<Subscription>| {
        let Err(Error::BrokerRefused { code: 403, reason }) = result.map(drop) else { panic!() };
        assert_eq!(reason, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use");
    };

    let own = f.link.subscribe(exclusive()).await.unwrap();
    refused(f.link.subscribe(exclusive()).await);
    refused(f.link.subscribe(subscribe("q", 1)).await);
    own.control.close().await;
    let _plain = consume(&f.link, "q", 1).await;
    refused(f.link.subscribe(exclusive()).await);

    f.declare(Queue::classic("single").single_active_consumer()).await;
    let with_single = crate::transport::Subscribe { queue: "single".into(), ..exclusive() };
    assert!(f.link.subscribe(with_single).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_quorum_queue_does_not_enforce_exclusive_consumers() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    let exclusive = || crate::transport::Subscribe { exclusive: true, ..subscribe("q", 1) };
    let _one = f.link.subscribe(exclusive()).await.unwrap();
    let _two = f.link.subscribe(exclusive()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn consumer_arguments_but_the_priority_are_refused() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let mut request = subscribe("q", 1);
    request.arguments = Headers::from_iter([("x-cancel-on-ha-failover", true)]);
    let refused = f.link.subscribe(request.clone()).await.map(drop);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    request.arguments = Headers::from_iter([("x-priority", "high")]);
    let refused = f.link.subscribe(request).await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("\"expected integer, got longstr\""), "{refused}");
}

async fn consume_with(f: &Fixture, priority: i64, prefetch: u16) -> Subscription {
    let mut request = subscribe("q", prefetch);
    request.arguments = Headers::from_iter([("x-priority", priority)]);
    f.link.subscribe(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_consumer_of_higher_priority_gets_all_it_has_room_for() {
    for queue in kinds() {
        let f = Fixture::with_queue(queue).await;
        let mut low = consume_with(&f, -1, 10).await;
        let mut none = consume(&f.link, "q", 2).await;
        let mut high = consume_with(&f, 5, 2).await;
        f.send("q", &["0", "1", "2", "3", "4"]).await;
        assert_eq!(bodies(&sent(&mut low)), "4");
        assert_eq!(bodies(&sent(&mut none)), "2 3");
        let held = sent(&mut high);
        assert_eq!(bodies(&held), "0 1");
        for delivery in held {
            delivery.settle.ack().await.unwrap();
        }
        f.send("q", &["5"]).await;
        assert_eq!(bodies(&sent(&mut high)), "5");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_consumer_of_higher_priority_comes_next_in_a_classic_queue_only() {
    for (queue, next) in [(Queue::classic("q"), 2), (Queue::quorum("q"), 1)] {
        let f = Fixture::with_queue(queue.single_active_consumer()).await;
        let mut consumers = Vec::new();
        for priority in [0, 0, 7] {
            consumers.push(consume_with(&f, priority, 1).await);
        }
        f.send("q", &["0"]).await;
        assert_eq!(bodies(&sent(&mut consumers[0])), "0", "the first stays the active one");
        consumers[0].control.close().await;
        assert_eq!(bodies(&sent(&mut consumers[next])), "0r");
    }
}

async fn single_active(queue: Queue) -> (Fixture, Subscription, Subscription) {
    let f = Fixture::with_queue(queue.single_active_consumer()).await;
    let a = consume(&f.link, "q", 2).await;
    let b = consume(&f.link, "q", 2).await;
    f.send("q", &["0", "1", "2", "3", "4", "5"]).await;
    (f, a, b)
}

#[tokio::test(start_paused = true)]
async fn a_single_active_consumer_gets_all_until_it_goes() {
    for queue in kinds() {
        let (_f, mut a, mut b) = single_active(queue).await;
        let first = sent(&mut a);
        assert_eq!(bodies(&first), "0 1");
        ack_all(first).await;
        let second = sent(&mut a);
        assert_eq!(bodies(&second), "2 3");
        assert!(sent(&mut b).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn broken_connections_give_their_messages_back_in_order_and_once() {
    for queue in kinds() {
        let f = Fixture::with_queue(queue.single_active_consumer()).await;
        let standby = f.dial().await;
        let mut a = consume(&f.link, "q", 2).await;
        let mut b = consume(&standby, "q", 2).await;
        f.send("q", &["0", "1", "2"]).await;
        assert_eq!(pair(&mut a, &mut b), ("0 1".into(), String::new()));

        f.broker.disconnect_all("cut");

        assert!(matches!(b.deliveries.next().await, Some(Err(_))), "all went at the same time");
        let link = f.dial().await;
        let mut c = consume(&link, "q", 3).await;
        assert_eq!(bodies(&sent(&mut c)), "0r 1r 2");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quorum_queue_takes_the_messages_of_a_closed_channel_back_before_it_hands_over() {
    let (_f, mut a, mut b) = single_active(Queue::quorum("q")).await;
    assert_eq!(pair(&mut a, &mut b), ("0 1".into(), String::new()));

    a.control.close().await;
    let older = sent(&mut b);
    assert_eq!(bodies(&older), "0r 1r");
    ack_all(older).await;
    assert_eq!(bodies(&sent(&mut b)), "2 3");
}

#[tokio::test(start_paused = true)]
async fn a_quorum_queue_hands_over_at_the_cancel() {
    let (_f, a, mut b) = single_active(Queue::quorum("q")).await;
    a.control.cancel().await.unwrap();
    assert_eq!(bodies(&sent(&mut b)), "2 3");
}

#[tokio::test(start_paused = true)]
async fn a_classic_queue_hands_over_in_order_when_the_channel_closes() {
    let (f, mut a, mut b) = single_active(Queue::classic("q")).await;
    let mut held = sent(&mut a);
    a.control.cancel().await.unwrap();
    held.remove(0).settle.ack().await.unwrap();
    assert!(sent(&mut b).is_empty(), "not at the cancel, as on RabbitMQ 3.10");

    a.control.close().await;
    assert_eq!(bodies(&sent(&mut b)), "1r 2");
    assert_eq!(f.ready("q"), ["3", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn a_classic_queue_that_waits_for_its_next_consumer_is_moved_by_a_publish() {
    let (f, mut a, mut b) = single_active(Queue::classic("q")).await;
    a.control.cancel().await.unwrap();
    ack_all(sent(&mut a)).await;
    assert!(sent(&mut b).is_empty());

    f.send("q", &["6"]).await;
    assert_eq!(bodies(&sent(&mut b)), "2 3");
}
