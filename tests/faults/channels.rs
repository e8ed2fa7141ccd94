//! What the broker ends by itself: a connection that an operator closes, under work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{AceMq, BytesCodec, ConsumerState, Error, Exchange, Message, Queue, Topology};
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::{
    World,
    support::{
        Broker, Fixture, Inbox, eventually, rabbitmqctl::close_connections, server::major_version,
        soon, unique, until_ready, until_reconnecting,
    },
};

async fn named(fx: &Fixture) -> (AceMq, String) {
    let name = unique("client");
    let options = fx.options().client_name(name.as_str());
    (options.shutdown_timeout(Duration::from_secs(5)).connect().await.unwrap(), name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_that_comes_after_the_broker_closed_the_channel_is_counted_and_harms_nothing() {
    let fx = Fixture::on(Broker::RabbitMq).await;
    let (mq, name) = named(&fx).await;
    let queue = fx.queue("orders").await;
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
    let consumer = mq.consumer::<u32>(queue.as_str()).concurrency(2).start(handler).await.unwrap();
    mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
    eventually("the handler to start", async || starts.load(Ordering::SeqCst) == 1).await;

    close_connections(&format!("{name} (consume)"), "closed by a test").await;
    eventually("the broker to deliver again", async || starts.load(Ordering::SeqCst) == 2).await;
    gate.add_permits(2);

    eventually("both handlers to be done", async || consumer.stats().in_flight == 0).await;
    eventually("both settlements", async || {
        let stats = consumer.stats();
        (stats.received, stats.acked, stats.settle_failed) == (2, 1, 1)
    })
    .await;
    assert_eq!(mq.queue_length(&queue).await.unwrap(), Some(0));
    let _ = mq.close().await;
    fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_broker_closes_names_its_reason_and_comes_back() {
    let fx = Fixture::on(Broker::RabbitMq).await;
    let (mq, name) = named(&fx).await;
    let queue = fx.queue("orders").await;
    let mut inbox = Inbox::of(&mq, &queue).await;
    let publisher = mq.publisher::<u32>("", queue.as_str());
    let states = crate::support::record_states(&mq);
    for role in ["publish", "consume"] {
        close_connections(&format!("{name} ({role})"), "closed by a test").await;
        eventually("the reason in the state", async || {
            let seen = states.lock().unwrap();
            seen.iter().any(|state| format!("{state:?}").contains("closed by a test"))
        })
        .await;
        states.lock().unwrap().clear();
        soon("a send", publisher.send(&7)).await.unwrap();
        assert_eq!(inbox.next().await.body().as_ref(), b"7");
        until_ready(&mq).await;
    }
    let _ = mq.close().await;
    fx.clean_up().await;
}

/// B07: the broker closes the channel over such a body, and names nothing but its size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_brokers_own_limit_is_refused_alone() {
    let fx = Fixture::on(Broker::RabbitMq).await;
    // 128 MiB until RabbitMQ 4 made it 16 MiB.
    let limit = if major_version(fx.broker).await >= 4 { 16 << 20 } else { 128 << 20 };
    let mq = fx.options().max_body_size(2 * limit).connect().await.unwrap();
    let queue = fx.queue("orders").await;
    let small = mq.publisher::<u32>("", queue.as_str());
    let large = mq.publisher_with::<Bytes>("", queue.as_str(), BytesCodec);
    let body = Bytes::from(vec![0; limit + 1]);

    let numbers: Vec<u32> = (0..200).collect();
    let (refused, sent) = tokio::join!(large.send(&body), small.send_all(&numbers));

    match refused.unwrap_err() {
        Error::BrokerRefused { code: 406, reason } => {
            assert!(reason.contains(&(limit + 1).to_string()), "{reason}");
        }
        error => panic!("the large body got {error:?}"),
    }
    // The others were in flight on the same channel: confirmed, or not known to have arrived.
    for result in sent.results() {
        assert!(result.as_ref().err().is_none_or(Error::may_have_been_published), "{result:?}");
    }
    small.send(&1).await.unwrap();
    let _ = mq.close().await;
    fx.clean_up().await;
}

/// B110: queue, bindings and consumer come back as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broadcast_reaches_an_exclusive_auto_deleted_queue_after_each_loss() {
    let world = World::new().await;
    let mq = world.options().reconnect_cap(Duration::from_millis(200)).connect().await.unwrap();
    let (exchange, queue) = (world.fx.name("news"), world.fx.name("mine"));
    let topology = Topology::new()
        .exchange(Exchange::fanout(exchange.as_str()).auto_delete())
        .queue(Queue::classic(queue.as_str()).exclusive().auto_delete())
        .bind(queue.as_str(), exchange.as_str(), "");
    mq.declare(&topology).await.unwrap();
    let mut inbox = Inbox::of(&mq, &queue).await;
    let publisher = world.fx.mq.publisher::<u32>(exchange.as_str(), "any");
    for round in 0..10_u32 {
        // Around the proxy, and again until the queue is there: mandatory, so it cannot vanish.
        eventually("the broadcast to have a queue", async || match publisher.send(&round).await {
            Ok(_) => true,
            Err(Error::Unroutable { .. } | Error::NotFound { .. }) => false,
            Err(error) => panic!("{error:?}"),
        })
        .await;
        let expected = round.to_string();
        // What the broker had sent ahead comes once more after a cut.
        while inbox.next().await.body().as_ref() != expected.as_bytes() {}
        world.proxy.cut();
        until_reconnecting(&mq).await;
        until_ready(&mq).await;
    }
    world.clean_up(mq).await;
}

/// B105: what is not declared through the handle is not declared by it.
async fn a_queue_of_somebody_else(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    let options = fx.options().reconnect_cap(Duration::from_millis(200));
    let mq = options.connect().await.unwrap();
    let mut inbox = Inbox::of(&mq, &queue).await;
    for round in 0..5_u32 {
        fx.mq.delete_queue(&queue).await.unwrap();
        eventually("the consumer to say what is missing", async || {
            matches!(inbox.consumer.state(), ConsumerState::Waiting(reason) if reason.contains(&queue))
        })
        .await;
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), None);
        fx.mq.declare(&Topology::new().queue(Queue::new(queue.as_str()))).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&round).await.unwrap();
        assert_eq!(inbox.next().await.body().as_ref(), round.to_string().as_bytes());
        assert_eq!(inbox.consumer.state(), ConsumerState::Running);
    }
    let _ = mq.close().await;
    fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_of_somebody_elses_queue_waits_until_it_is_back_on_rabbitmq() {
    a_queue_of_somebody_else(Broker::RabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_of_somebody_elses_queue_waits_until_it_is_back_in_memory() {
    a_queue_of_somebody_else(Broker::Memory).await;
}
