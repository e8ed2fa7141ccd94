//! How the way back is paced, and what a caller sees meanwhile.

use std::time::{Duration, Instant};

use acemq::{ConnectionState, ConsumerState, Error, Queue, Topology};

use crate::{
    World,
    support::{Inbox, eventually, soon, until_ready, until_reconnecting},
};

/// B112: growing pauses, no storm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stays_away_is_asked_ever_more_rarely() {
    let world = World::new().await;
    let mq = world.connect().await;
    let queue = world.fx.queue("orders").await;
    let mut inbox = Inbox::of(&mq, &queue).await;
    let before = world.proxy.attempts();
    let refused = Instant::now();
    world.proxy.refuse();
    until_reconnecting(&mq).await;
    // The pauses are 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 s, each cut by up to a half.
    eventually("eight attempts of the two connections", async || {
        world.proxy.attempts() - before >= 8
    })
    .await;
    assert!(refused.elapsed() > Duration::from_millis(600), "{:?}", refused.elapsed());
    let _ = tokio::time::timeout(
        Duration::from_secs(4).saturating_sub(refused.elapsed()),
        mq.publisher::<u32>("", queue.as_str()).send(&1),
    )
    .await;
    let attempts = world.proxy.attempts() - before;
    assert!((8..=16).contains(&attempts), "{attempts} attempts in {:?}", refused.elapsed());
    assert!(matches!(mq.state(), ConnectionState::Reconnecting(_)));
    assert!(matches!(inbox.consumer.state(), ConsumerState::Waiting(_)));

    world.proxy.forward();
    until_ready(&mq).await;
    world.fx.mq.publisher::<u32>("", queue.as_str()).send(&2).await.unwrap();
    inbox.next().await;
    assert_eq!(inbox.consumer.state(), ConsumerState::Running);
    world.clean_up(mq).await;
}

/// B116: nothing is kept in a hidden buffer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_while_the_broker_is_away_waits_and_then_says_that_nothing_was_sent() {
    let world = World::new().await;
    let mq = world.connect().await;
    let queue = world.fx.queue("orders").await;
    let publisher = mq.publisher::<u32>("", queue.as_str());
    world.proxy.refuse();
    until_reconnecting(&mq).await;
    let limit = Duration::from_millis(300);
    let impatient = publisher.clone().confirm_timeout(limit);
    // The loss of the other connection may have been the one that was noticed.
    eventually("the loss to be known", async || {
        !matches!(impatient.send(&1).await, Err(Error::Interrupted { .. }))
    })
    .await;
    let started = Instant::now();
    let error = impatient.send(&1).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { waited } if waited >= limit), "{error:?}");
    assert!(!error.may_have_been_published() && error.is_retryable());
    assert!(started.elapsed() < 5 * limit, "{:?}", started.elapsed());

    let patient = tokio::spawn(async move { publisher.send(&2).await });
    world.proxy.forward();
    soon("the patient send", patient).await.unwrap().unwrap();
    assert_eq!(world.fx.mq.queue_length(&queue).await.unwrap(), Some(1));
    world.clean_up(mq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_declared_through_the_handle_is_there_again_after_a_loss() {
    let world = World::new().await;
    let mq = world.connect().await;
    let queue = world.fx.name("orders");
    mq.declare(&Topology::new().queue(Queue::new(queue.as_str()))).await.unwrap();
    world.proxy.refuse();
    until_reconnecting(&mq).await;
    // Somebody deletes it meanwhile.
    world.fx.mq.delete_queue(&queue).await.unwrap();
    world.proxy.forward();
    // The first may still meet the lost connection, on which nothing gets through.
    let publisher = mq.publisher::<u32>("", queue.as_str());
    eventually("a send", async || publisher.send(&1).await.is_ok()).await;
    assert_eq!(mq.queue_length(&queue).await.unwrap(), Some(1));
    world.clean_up(mq).await;
}
