//! Connections: loss, alarms, held answers, restarts.

use futures::{FutureExt, StreamExt};

use super::{Fixture, bare, bodies, consume, message, sent, subscribe, to};
use crate::{
    error::Error,
    topology::{Exchange, Queue, Topology},
    transport::{LinkStatus, Transport, memory::MemoryTransport},
};

fn is_interrupted<T>(result: crate::Result<T>, why: &str) -> bool {
    matches!(result, Err(Error::Interrupted { reason }) if reason == why)
}

#[tokio::test(start_paused = true)]
async fn a_lost_link_gives_its_messages_back_and_says_why() {
    for queue in [Queue::classic("q"), Queue::quorum("q")] {
        let f = Fixture::with_queue(queue).await;
        f.send("q", &["1", "2", "3"]).await;
        let mut consumer = consume(&f.link, "q", 2).await;
        let one = consumer.deliveries.next().await.unwrap().unwrap();
        let mut status = f.link.status();

        f.broker.disconnect_all("cut");

        status.changed().await.unwrap();
        assert_eq!(*status.borrow(), LinkStatus::Lost("cut".into()));
        // What was sent is in the stream; then it ends with the reason.
        let two = consumer.deliveries.next().await.unwrap().unwrap();
        assert!(is_interrupted(consumer.deliveries.next().await.unwrap(), "cut"));
        assert!(consumer.deliveries.next().await.is_none());
        for late in [one.settle.ack().await, two.settle.nack(false).await] {
            assert!(matches!(late, Err(Error::Interrupted { .. })));
        }
        let link = f.dial().await;
        let mut again = consume(&link, "q", 10).await;
        assert_eq!(bodies(&sent(&mut again)), "1r 2r 3");
    }
}

#[tokio::test(start_paused = true)]
async fn every_operation_on_a_lost_link_fails_with_its_reason() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let consumer = consume(&f.link, "q", 1).await;
    let mut pull = f.link.pull("q").await.unwrap();
    f.broker.disconnect_all("cut");

    assert!(is_interrupted(f.link.publish(message("q", "x")).await, "cut"));
    assert!(is_interrupted(f.link.subscribe(subscribe("q", 1)).await, "cut"));
    assert!(is_interrupted(f.link.pull("q").await, "cut"));
    assert!(is_interrupted(f.link.declare(&Topology::new()).await, "cut"));
    assert!(is_interrupted(f.link.inspect("q").await, "cut"));
    assert!(is_interrupted(f.link.delete_queue("q").await, "cut"));
    assert!(matches!(consumer.control.cancel().await, Err(Error::Interrupted { .. })));
    assert!(matches!(pull.next().await, Err(Error::Interrupted { .. })));
    consumer.control.close().await;
    f.link.close().await;
    assert_eq!(*f.link.status().borrow(), LinkStatus::Lost("cut".into()));
}

#[tokio::test(start_paused = true)]
async fn closing_or_dropping_a_link_closes_its_channels() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.send("q", &["1", "2"]).await;
    let (one, two) = (f.dial().await, f.dial().await);
    let mut first = consume(&one, "q", 1).await;
    let mut second = consume(&two, "q", 1).await;
    assert_eq!(f.ready("q").len(), 0);

    one.close().await;
    drop(two);

    assert_eq!(f.ready("q"), ["1", "2"]);
    for consumer in [&mut first, &mut second] {
        assert!(consumer.deliveries.next().await.unwrap().is_ok());
        assert!(matches!(consumer.deliveries.next().await, Some(Err(_))));
    }
    assert!(matches!(*one.status().borrow(), LinkStatus::Lost(_)));
}

#[tokio::test(start_paused = true)]
async fn a_blocked_link_publishes_when_the_alarm_is_over_in_the_order_of_publishing() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    let mut status = f.link.status();
    f.broker.block("low on memory");
    status.changed().await.unwrap();
    assert_eq!(*status.borrow_and_update(), LinkStatus::Blocked("low on memory".into()));
    let late = f.dial().await;
    assert_eq!(*late.status().borrow(), LinkStatus::Blocked("low on memory".into()));

    let mut one = f.link.publish(message("q", "1"));
    let mut two = f.link.publish(message("q", "2"));
    assert!((&mut one).now_or_never().is_none() && (&mut two).now_or_never().is_none());
    assert_eq!(f.broker.unconfirmed(), 2);
    assert!(f.ready("q").is_empty());
    // Everything else works.
    f.declare(Queue::classic("other")).await;

    f.broker.unblock();
    status.changed().await.unwrap();
    assert_eq!(*status.borrow(), LinkStatus::Open);
    two.await.unwrap();
    one.await.unwrap();
    assert_eq!(f.ready("q"), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_blocked_publish_ends_with_its_link() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.broker.block("low on disk");
    let mut waiting = f.link.publish(message("q", "x"));
    assert!((&mut waiting).now_or_never().is_none());

    f.broker.disconnect_all("cut");
    f.broker.unblock();

    assert!(is_interrupted(waiting.await, "cut"));
    assert!(f.ready("q").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_message_on_its_way_is_published_although_its_publisher_gave_up() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.broker.block("low on memory");
    let mut waiting = f.link.publish(message("q", "x"));
    assert!((&mut waiting).now_or_never().is_none());
    drop(waiting);
    drop(f.link.publish(message("q", "never polled")));
    f.broker.unblock();
    assert_eq!(f.ready("q"), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn held_confirms_come_later_each_with_its_own_answer() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.broker.hold_confirms(true);
    let mut routed = f.link.publish(message("q", "x"));
    let mut returned = f.link.publish(message("nowhere", "y"));
    assert!((&mut routed).now_or_never().is_none() && (&mut returned).now_or_never().is_none());
    assert_eq!(f.ready("q"), ["x"]);

    f.broker.hold_confirms(false);

    assert!(matches!(returned.await, Err(Error::Unroutable { .. })));
    routed.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_loss_before_the_confirm_leaves_a_published_message_and_an_interrupted_publisher() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.broker.hold_confirms(true);
    let mut publish = f.link.publish(message("q", "x"));
    assert!((&mut publish).now_or_never().is_none());

    f.broker.disconnect_all("cut");

    let error = publish.await.unwrap_err();
    assert!(error.may_have_been_published());
    assert_eq!(f.ready("q"), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn refused_connections_do_not_touch_the_existing_ones() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    f.broker.refuse_connections(true);
    let refused = f.transport.dial("test").await;
    assert!(matches!(refused, Err(Error::Connect { .. })));
    f.send("q", &["x"]).await;
    f.broker.refuse_connections(false);
    f.dial().await.inspect("q").await.unwrap();
}

#[test]
fn dialling_outside_of_a_runtime_is_an_error() {
    let dialled = MemoryTransport::private().dial("test").now_or_never().unwrap();
    assert!(matches!(dialled, Err(Error::Connect { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_what_is_durable() {
    let f = Fixture::new().await;
    let topology = Topology {
        exchanges: vec![Exchange::direct("kept"), Exchange::direct("lost").transient()],
        queues: vec![
            Queue::classic("classic"),
            Queue::quorum("quorum"),
            Queue::classic("transient").transient(),
            Queue::classic("exclusive").exclusive(),
        ],
        ..Topology::default()
    };
    f.link.declare(&topology.bind("classic", "kept", "k")).await.unwrap();
    for queue in ["classic", "quorum"] {
        f.send(queue, &["persistent"]).await;
        let mut fleeting = message(queue, "fleeting");
        fleeting.properties.persistent = false;
        f.link.publish(fleeting).await.unwrap();
    }

    f.broker.restart();

    assert!(matches!(*f.link.status().borrow(), LinkStatus::Lost(_)));
    assert_eq!(f.broker.queue_names(), ["classic", "quorum"]);
    assert_eq!(f.ready("classic"), ["persistent"]);
    assert_eq!(f.ready("quorum"), ["persistent", "fleeting"]);
    let link = f.dial().await;
    link.publish(to("kept", "k", "x")).await.unwrap();
    link.publish(to("amq.topic", "k", "x")).await.unwrap_err();
    let lost = link.publish(to("lost", "k", "x")).await;
    assert!(matches!(lost, Err(Error::NotFound { .. })), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_named_broker_is_shared_until_its_last_handle_is_gone() {
    let name = "shared-until-gone";
    let one = MemoryTransport::named(name);
    let two = MemoryTransport::named(name);
    assert_eq!(one.endpoint(), "memory://shared-until-gone");
    one.dial("test").await.unwrap().declare(&bare(Queue::classic("q"))).await.unwrap();
    assert_eq!(two.broker().queue_names(), ["q"]);

    let link = two.dial("test").await.unwrap();
    drop((one, two));
    assert_eq!(MemoryTransport::named(name).broker().queue_names(), ["q"], "a link is a handle");
    drop(link);

    assert!(MemoryTransport::named(name).broker().queue_names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn private_brokers_share_nothing() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    assert_eq!(f.transport.endpoint(), "memory://");
    assert!(MemoryTransport::private().broker().queue_names().is_empty());
    assert_eq!(f.transport.clone().broker().queue_names(), ["q"]);
}

#[tokio::test(start_paused = true)]
async fn leftovers_do_not_keep_a_broker_alive() {
    let name = "leftovers";
    let transport = MemoryTransport::named(name);
    let link = transport.dial("test").await.unwrap();
    link.declare(&bare(Queue::classic("q"))).await.unwrap();
    link.publish(message("q", "x")).await.unwrap();
    let mut consumer = consume(&link, "q", 1).await;
    let pull = link.pull("q").await.unwrap();
    let delivery = consumer.deliveries.next().await.unwrap().unwrap();

    drop((link, transport));

    assert!(MemoryTransport::named(name).broker().queue_names().is_empty());
    assert!(matches!(delivery.settle.ack().await, Err(Error::Interrupted { .. })));
    pull.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_publishers_and_consumers_lose_nothing() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    let publishers = (0..4).map(|publisher| {
        let link = std::sync::Arc::clone(&f.link);
        tokio::spawn(async move {
            for n in 0..250 {
                link.publish(message("q", &format!("{publisher}-{n}"))).await.unwrap();
            }
        })
    });
    let (seen, mut all) = tokio::sync::mpsc::unbounded_channel();
    let mut controls = Vec::new();
    for _ in 0..3 {
        let mut consumer = consume(&f.link, "q", 7).await;
        controls.push(consumer.control);
        let seen = seen.clone();
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.deliveries.next().await {
                delivery.settle.ack().await.unwrap();
                seen.send(delivery.body).unwrap();
            }
        });
    }
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
    let mut bodies = std::collections::HashSet::new();
    for _ in 0..1000 {
        assert!(bodies.insert(all.recv().await.unwrap()));
    }
    assert_eq!((f.broker.unsettled("q"), f.ready("q").len()), (0, 0));
}
