//! B106: the broker closes a consumer's channel, and leaves its connection alone.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use acemq::{ConnectionState, ConsumerState, Message};
use tokio::sync::Semaphore;

use crate::{
    alone,
    support::{
        Broker, Fixture, Inbox, eventually,
        rabbitmqctl::{Restore, rabbitmqctl},
        record_states,
    },
};

const SHORT: &str = "application:set_env(rabbit, consumer_timeout, 500), \
                     application:set_env(rabbit, channel_tick_interval, 200).";
const USUAL: &str = "application:set_env(rabbit, consumer_timeout, 1800000), \
                     application:set_env(rabbit, channel_tick_interval, 60000).";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_slower_than_the_brokers_patience_loses_its_channel_and_nothing_more() {
    let _alone = alone();
    let fx = Fixture::on(Broker::RabbitMq).await;
    let (queue, other) = (fx.queue("orders").await, fx.queue("others").await);
    let mut bystander = Inbox::of(&fx.mq, &other).await;
    let usual = Restore::by(&["eval", USUAL]);
    rabbitmqctl(&["eval", SHORT]).await;

    let (starts, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)));
    let handler = {
        let (starts, gate) = (Arc::clone(&starts), Arc::clone(&gate));
        move |_: Message<u32>| {
            let (starts, gate) = (Arc::clone(&starts), Arc::clone(&gate));
            async move {
                starts.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await?.forget();
                Ok(())
            }
        }
    };
    let consumer =
        fx.mq.consumer::<u32>(queue.as_str()).concurrency(2).start(handler).await.unwrap();
    let states = record_states(&fx.mq);
    fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
    eventually("the message to be delivered again", async || starts.load(Ordering::SeqCst) == 2)
        .await;
    // The first one is too late by now; the second may be, on a slow machine.
    gate.add_permits(100);
    eventually("the message to be settled", async || consumer.stats().acked == 1).await;
    assert!(consumer.stats().settle_failed >= 1);
    drop(usual);

    assert_eq!(consumer.state(), ConsumerState::Running);
    fx.mq.publisher::<u32>("", other.as_str()).send(&2).await.unwrap();
    bystander.next().await;
    assert_eq!(bystander.consumer.stats().settle_failed, 0);
    let seen = states.lock().unwrap().clone();
    assert!(seen.iter().all(|state| *state == ConnectionState::Ready), "{seen:?}");
    assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
    fx.clean_up().await;
}
