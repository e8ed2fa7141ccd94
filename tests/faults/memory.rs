//! The same faults on `memory://`, through the test kit, mostly under paused time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{
    AceMq, ConnectionState, ConsumerState, Envelope, Error, Exchange, Message, Queue, Topology,
    testing::MemoryBroker,
};
use tokio::{sync::Semaphore, time::Instant};

use crate::support::{Inbox, eventually, unique, until_ready, until_reconnecting};

struct Memory {
    broker: MemoryBroker,
    url: String,
    mq: AceMq,
}

impl Memory {
    async fn new() -> Self {
        let url = format!("memory://{}", unique("broker"));
        let broker = MemoryBroker::of(&url);
        let mq = AceMq::connect(url.as_str()).await.unwrap();
        mq.declare(&Topology::new().queue(Queue::new("orders"))).await.unwrap();
        Self { broker, url, mq }
    }

    async fn send(&self, number: u32) -> acemq::Result<String> {
        self.mq.publisher::<u32>("", "orders").send(&number).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_test_sees_what_waits_in_a_queue_and_takes_nothing_out() {
    let m = Memory::new().await;
    let envelope = Envelope::of("order.placed").correlation("order-7");
    let publisher = m.mq.publisher::<u32>("", "orders");
    let id = publisher.send_with(&7, envelope).await.unwrap();
    for _ in 0..2 {
        let waiting = m.broker.messages("orders");
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].envelope.id(), id);
        assert_eq!(waiting[0].envelope.message_type(), "order.placed");
        assert_eq!(waiting[0].envelope.correlation_id(), "order-7");
        assert_eq!(waiting[0].body, "7");
        assert_eq!(waiting[0].content_type.as_deref(), Some("application/json"));
    }
    assert_eq!(m.broker.messages("no such queue"), []);
    assert_eq!(m.broker.queue_names(), ["orders", "orders.dlq"]);

    let (gate, waiting) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (gate, waiting) = (Arc::clone(&gate), Arc::clone(&waiting));
        move |_: Message<u32>| {
            let (gate, waiting) = (Arc::clone(&gate), Arc::clone(&waiting));
            async move {
                waiting.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await?.forget();
                Ok(())
            }
        }
    };
    let consumer = m.mq.consumer::<u32>("orders").start(handler).await.unwrap();
    eventually("the handler", async || waiting.load(Ordering::SeqCst) == 1).await;
    assert_eq!((m.broker.unsettled("orders"), m.broker.messages("orders").len()), (1, 0));
    gate.add_permits(1);
    eventually("the ack", async || m.broker.unsettled("orders") == 0).await;
    consumer.close().await;
}

#[test]
fn a_broker_without_a_name_cannot_be_reached() {
    for name in ["", "memory://", "amqp://localhost"] {
        assert!(std::panic::catch_unwind(|| MemoryBroker::of(name)).is_err(), "{name}");
    }
    let one = MemoryBroker::of("memory://of-a-name");
    assert_eq!(one.queue_names(), MemoryBroker::of("of-a-name").queue_names());
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_names_its_reason_and_comes_back_with_its_consumers() {
    let m = Memory::new().await;
    let mut inbox = Inbox::of(&m.mq, "orders").await;
    for round in 0..20 {
        m.broker.disconnect_all("a cable was pulled");
        until_reconnecting(&m.mq).await;
        assert_eq!(m.mq.state(), ConnectionState::Reconnecting("a cable was pulled".into()));
        m.send(round).await.unwrap();
        assert_eq!(inbox.next().await.body().as_ref(), round.to_string().as_bytes());
        until_ready(&m.mq).await;
    }
    m.mq.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_refuses_connections_is_waited_for() {
    let m = Memory::new().await;
    m.broker.refuse_connections(true);
    m.broker.disconnect_all("gone");
    let options = AceMq::options(m.url.as_str()).wait_for_broker(Duration::from_secs(3));
    let error = options.clone().connect().await.unwrap_err();
    assert!(matches!(&error, Error::Connect { endpoint, .. } if *endpoint == m.url), "{error:?}");

    // Hours in paused time: it never gives up.
    let publisher = m.mq.publisher::<u32>("", "orders").confirm_timeout(Duration::from_hours(3));
    let error = publisher.send(&1).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error:?}");

    let started = Instant::now();
    let (late, sent, ()) = tokio::join!(options.connect(), publisher.send(&2), async {
        eventually("a while", async || started.elapsed() > Duration::from_secs(1)).await;
        m.broker.refuse_connections(false);
    });
    sent.unwrap();
    assert_eq!(m.broker.messages("orders").len(), 1);
    late.unwrap().close().await;
    m.mq.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_broker_refuses_publishes_at_once_and_still_delivers() {
    let m = Memory::new().await;
    m.send(1).await.unwrap();
    m.broker.block("low on memory");
    eventually("the state", async || {
        m.mq.state() == ConnectionState::Blocked("low on memory".into())
    })
    .await;
    let started = Instant::now();
    let error = m.send(2).await.unwrap_err();
    assert!(matches!(&error, Error::Blocked { reason } if reason == "low on memory"), "{error:?}");
    assert!(!error.may_have_been_published());
    assert_eq!(started.elapsed(), Duration::ZERO);

    let mut inbox = Inbox::of(&m.mq, "orders").await;
    assert_eq!(inbox.next().await.body().as_ref(), b"1");

    let patient = AceMq::options(m.url.as_str()).wait_when_blocked(true).connect().await.unwrap();
    let publisher = patient.publisher::<u32>("", "orders");
    let (sent, ()) = tokio::join!(publisher.send(&3), async { m.broker.unblock() });
    sent.unwrap();
    m.send(4).await.unwrap();
    assert_eq!(inbox.next().await.body().as_ref(), b"3");
    until_ready(&m.mq).await;

    m.broker.block("low on memory");
    let started = Instant::now();
    patient.close().await;
    m.mq.close().await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

/// Nothing of it was sent, so the wait goes on with the next connection.
#[tokio::test(start_paused = true)]
async fn a_publish_that_waits_for_the_end_of_a_block_outlives_the_connection() {
    let m = Memory::new().await;
    m.broker.block("low on memory");
    let patient = AceMq::options(m.url.as_str()).wait_when_blocked(true).connect().await.unwrap();
    let publisher = patient.publisher::<u32>("", "orders");
    let (sent, ()) = tokio::join!(publisher.send(&1), async {
        m.broker.disconnect_all("cut");
        m.broker.unblock();
    });
    sent.unwrap();
    assert_eq!(m.broker.messages("orders").len(), 1);
    let _ = tokio::join!(patient.close(), m.mq.close());
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_what_is_durable_and_nothing_else() {
    let m = Memory::new().await;
    let transient = Queue::classic("transient").transient();
    let classic = Queue::classic("classic");
    let topology = Topology::new().queue(transient).queue(classic);
    // Around the handle under test, which would declare them again.
    let other = AceMq::connect(m.url.as_str()).await.unwrap();
    other.declare(&topology).await.unwrap();
    other.publisher::<u32>("", "transient").send(&1).await.unwrap();
    other.publisher::<u32>("", "classic").send(&2).await.unwrap();
    other.publisher::<u32>("", "classic").transient().send(&3).await.unwrap();
    other.close().await;
    m.send(4).await.unwrap();

    m.broker.restart();
    assert_eq!(m.broker.queue_names(), ["classic", "orders", "orders.dlq"]);
    let kept: Vec<_> = m.broker.messages("classic").into_iter().map(|m| m.body).collect();
    assert_eq!(kept, ["2"]);
    until_ready(&m.mq).await;
    m.send(5).await.unwrap();
    assert_eq!(m.broker.messages("orders").len(), 2);
    m.mq.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_ack_is_counted_and_the_message_comes_again() {
    let m = Memory::new().await;
    let (starts, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
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
    let consumer = m.mq.consumer::<u32>("orders").concurrency(2).start(handler).await.unwrap();
    m.send(1).await.unwrap();
    eventually("the first start", async || starts.load(Ordering::SeqCst) == 1).await;
    m.broker.disconnect_all("cut");
    eventually("the second start", async || starts.load(Ordering::SeqCst) == 2).await;
    gate.add_permits(2);
    eventually("both settlements", async || {
        let stats = consumer.stats();
        (stats.received, stats.acked, stats.settle_failed) == (2, 1, 1)
    })
    .await;
    assert_eq!((m.broker.unsettled("orders"), m.broker.messages("orders").len()), (0, 0));
    m.mq.close().await;
}

/// What was sent ahead of a cut is dropped, not handled twice.
#[tokio::test(start_paused = true)]
async fn a_cut_makes_duplicates_only_of_messages_in_hand() {
    let m = Memory::new().await;
    let numbers: Vec<u32> = (0..40).collect();
    assert_eq!(m.mq.publisher::<u32>("", "orders").send_all(&numbers).await.confirmed(), 40);
    let (seen, gate) = (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
    let handler = {
        let (seen, gate) = (Arc::clone(&seen), Arc::clone(&gate));
        move |message: Message<u32>| {
            let (seen, gate) = (Arc::clone(&seen), Arc::clone(&gate));
            async move {
                seen.lock().unwrap().push(*message.payload());
                gate.acquire().await?.forget();
                Ok(())
            }
        }
    };
    let consumer =
        m.mq.consumer::<u32>("orders").prefetch(40).concurrency(2).start(handler).await.unwrap();
    eventually("two handlers", async || seen.lock().unwrap().len() == 2).await;
    m.broker.disconnect_all("cut");
    gate.add_permits(1000);
    eventually("all to be handled", async || consumer.stats().acked == 40).await;
    let mut seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 42);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, numbers);
    m.mq.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_broadcast_reaches_an_exclusive_queue_after_each_loss() {
    let m = Memory::new().await;
    let topology = Topology::new()
        .exchange(Exchange::fanout("news"))
        .queue(Queue::classic("mine").exclusive().auto_delete())
        .bind("mine", "news", "");
    m.mq.declare(&topology).await.unwrap();
    let mut inbox = Inbox::of(&m.mq, "mine").await;
    let publisher = m.mq.publisher::<u32>("news", "any");
    for round in 0..10_u32 {
        eventually("the broadcast to have a queue", async || publisher.send(&round).await.is_ok())
            .await;
        assert_eq!(inbox.next().await.body().as_ref(), round.to_string().as_bytes());
        m.broker.disconnect_all("cut");
        until_reconnecting(&m.mq).await;
        eventually("the consumer", async || inbox.consumer.state() == ConsumerState::Running).await;
        until_ready(&m.mq).await;
    }
    m.mq.close().await;
}
