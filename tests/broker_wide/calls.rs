//! Calls that are in flight while the broker restarts.

use std::{convert::Infallible, time::Duration};

use crate::{
    alone,
    restart::stop,
    support::{Broker, Fixture, eventually, soon, until_ready, until_reconnecting},
};

/// The request, its queue and the reply queue are durable, so that a restart costs time only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_are_answered_after_a_restart_of_the_broker() {
    const CALLS: u64 = 50;
    let _alone = alone();
    let fx = Fixture::on(Broker::RabbitMq).await;
    let queue = fx.queue("requests").await;
    let requester = fx.mq.requester().await.unwrap();
    let reply_queue = requester.reply_queue();
    let mut calls = Vec::new();
    for question in 0..CALLS {
        let patience = Duration::from_secs(60);
        calls.push(requester.start::<_, u64>("", &queue, &question, patience).await.unwrap());
    }
    fx.until_length(&queue, CALLS).await;

    let stopped = stop().await;
    until_reconnecting(&fx.mq).await;
    drop(stopped);
    until_ready(&fx.mq).await;

    let double = |question: u64| async move { Ok::<_, Infallible>(2 * question) };
    let responder = fx.mq.respond(queue.as_str(), double).await.unwrap();
    for (question, call) in (0..CALLS).zip(calls) {
        assert_eq!(soon("the answer", call).await.unwrap(), 2 * question);
    }
    assert_eq!(requester.reply_queue(), reply_queue);
    eventually("an empty map", async || requester.stats().in_flight == 0).await;
    responder.close().await;
    requester.close().await;
    fx.clean_up().await;
}
