//! Connections that are open and dead: bytes go in and nothing comes back.

use std::time::{Duration, Instant};

use acemq::{Error, Queue, Topology};

use crate::{
    World,
    support::{Inbox, eventually, soon, until_ready, until_reconnecting},
};

const HEARTBEAT: Duration = Duration::from_secs(1);
/// Two heartbeats, and what a busy machine adds.
const NOTICED_WITHIN: Duration = Duration::from_secs(6);
/// The first answer after the network is back.
const RECOVERED_WITHIN: Duration = Duration::from_secs(10);

fn within(since: Instant, limit: Duration, what: &str) {
    assert!(since.elapsed() < limit, "{what} took {:?}", since.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_connection_is_noticed_by_its_heartbeat_and_replaced() {
    let world = World::new().await;
    let options = world.options().heartbeat(HEARTBEAT).attempt_timeout(HEARTBEAT);
    let mq = options.connect().await.unwrap();
    let queue = world.fx.queue("orders").await;
    let mut inbox = Inbox::of(&mq, &queue).await;
    let publisher = mq.publisher::<u32>("", queue.as_str());
    for round in 0..2 {
        publisher.send(&round).await.unwrap();
        inbox.next().await;

        // Nothing is under way: only the heartbeat can tell.
        let stalled = Instant::now();
        world.proxy.stall();
        until_reconnecting(&mq).await;
        within(stalled, NOTICED_WITHIN, "noticing");

        let back = Instant::now();
        world.proxy.forward();
        until_ready(&mq).await;
        within(back, RECOVERED_WITHIN, "recovering");
        // Published around the proxy, so that the consumer is seen on its own.
        world.fx.mq.publisher::<u32>("", queue.as_str()).send(&100).await.unwrap();
        // The stall may have kept an ack from the broker, which then delivers again.
        while inbox.next().await.body().as_ref() != b"100" {}
        within(back, RECOVERED_WITHIN, "consuming");
    }
    world.clean_up(mq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_in_flight_on_a_stalled_connection_ends_in_time() {
    let world = World::new().await;
    // No heartbeat helps here: the limits have to do it alone.
    let options = world.options().heartbeat(Duration::from_secs(600)).max_in_flight(2);
    let mq = options.confirm_timeout(Duration::from_secs(1)).connect().await.unwrap();
    let queue = world.fx.queue("orders").await;
    let inbox = Inbox::of(&mq, &queue).await;
    let publisher = mq.publisher::<u32>("", queue.as_str());
    publisher.send(&0).await.unwrap();
    eventually("the message", async || inbox.consumer.stats().acked == 1).await;

    world.proxy.stall();
    let started = Instant::now();
    // Two are sent, the others wait for a place; one goes to an exchange that has to be looked up.
    let elsewhere = mq.publisher::<u32>(world.fx.name("exchange"), "key");
    let numbers = [1, 2, 3, 4];
    let topology = Topology::new().queue(Queue::new(queue.as_str()));
    let (batch, unknown, declared, length, second) = tokio::join!(
        publisher.send_all(&numbers),
        elsewhere.send(&5),
        mq.declare(&topology),
        mq.queue_length(&queue),
        mq.consumer::<u32>(queue.as_str()).start(|_| async { Ok(()) }),
    );
    // The batch has a window of its own, so its second half starts when the first has ended.
    within(started, Duration::from_secs(4), "giving up");
    for result in batch.results() {
        assert!(matches!(result, Err(Error::ConfirmTimeout { .. })), "{result:?}");
    }
    assert!(matches!(unknown, Err(Error::ConfirmTimeout { .. })), "{unknown:?}");
    assert!(matches!(declared, Err(Error::Interrupted { .. })), "{declared:?}");
    assert!(matches!(length, Err(Error::Interrupted { .. })), "{length:?}");
    assert!(matches!(second, Err(Error::Interrupted { .. })), "{second:?}");

    let closing = Instant::now();
    soon("the close", mq.close()).await;
    within(closing, Duration::from_secs(15), "closing");
    eventually("the sockets to be closed", async || {
        world.proxy.forward();
        world.proxy.open() == 0
    })
    .await;
    world.fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishes_whose_answers_are_swallowed_end_and_their_places_come_back() {
    let world = World::new().await;
    let options = world.options().heartbeat(HEARTBEAT).attempt_timeout(HEARTBEAT).max_in_flight(2);
    let mq = options.connect().await.unwrap();
    let queue = world.fx.queue("orders").await;
    let limit = Duration::from_millis(500);
    let publisher = mq.publisher::<u32>("", queue.as_str()).confirm_timeout(limit);
    publisher.send(&0).await.unwrap();

    world.proxy.deafen();
    let started = Instant::now();
    let (first, second, third) =
        tokio::join!(publisher.send(&1), publisher.send(&2), publisher.send(&3));
    within(started, 3 * limit, "the end of three sends");
    for result in [first, second, third] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::ConfirmTimeout { waited } if waited == limit), "{error:?}");
        assert!(error.may_have_been_published());
    }
    // The first two had a place and arrived; the third never left.
    world.fx.until_length(&queue, 3).await;

    // Of the two connections it is the publishing one that has to be given up.
    eventually("the publishing connection to be given up", async || {
        matches!(publisher.send(&100).await, Err(Error::Disconnected { .. }))
    })
    .await;
    within(started, NOTICED_WITHIN + limit, "noticing");
    world.proxy.forward();
    eventually("sending again", async || publisher.send(&4).await.is_ok()).await;
    within(started, NOTICED_WITHIN + RECOVERED_WITHIN, "sending again");
    for number in 5..10 {
        publisher.send(&number).await.unwrap();
    }
    world.clean_up(mq).await;
}
