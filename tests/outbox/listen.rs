//! Wake-ups over processes by PostgreSQL's notifications. Each outbox here has its own pool and
//! wake-up signal, as in a process of its own.

use std::time::Duration;

use acemq::{OutboxRecord, OutboxRelay};
use tokio::time::Instant;

use crate::{
    ledger::Ledger,
    support::{Broker, eventually},
    world::{Pg, World, run},
};

/// No record of these tests may wait for it.
const POLL: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_another_process_is_heard_of_long_before_the_poll() {
    run(Broker::RabbitMq, |fx, here: Pg| async move {
        let queue = fx.queue("orders").await;
        let mut ledger = Ledger::of(&fx.mq, &queue).await;
        let there = Pg::open(here.name()).await;
        let writer = there.outbox().notify_every(Duration::from_millis(50));
        let outbox = here.outbox();
        let relay = OutboxRelay::new(&fx.mq, outbox.clone()).poll_interval(POLL).start();
        let _listener = outbox.listen();
        for n in 0..10 {
            there.add(vec![record(&queue, n)]).await;
            let committed = Instant::now();
            writer.wake();
            ledger.until_length(n + 1).await;
            // The listener hears nothing before it listens; what it missed, it finds then.
            assert!(committed.elapsed() < Duration::from_secs(2), "{:?}", committed.elapsed());
        }
        relay.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_lost_its_connection_finds_what_it_missed() {
    run(Broker::RabbitMq, |fx, direct: Pg| async move {
        let queue = fx.queue("orders").await;
        let mut ledger = Ledger::of(&fx.mq, &queue).await;
        let (cut_off, proxy) = direct.through_proxy().await;
        let outbox = cut_off.outbox();
        let relay = OutboxRelay::new(&fx.mq, outbox.clone()).poll_interval(POLL).start();
        let _listener = outbox.listen();
        let writer = Pg::open(direct.name()).await;
        let notifying = writer.outbox().notify_every(Duration::ZERO);
        let mut sent = 0;
        for _ in 0..3 {
            writer.add(vec![record(&queue, sent)]).await;
            notifying.wake();
            sent += 1;
            ledger.until_length(sent).await;

            proxy.refuse();
            writer.add(vec![record(&queue, sent)]).await;
            notifying.wake();
            sent += 1;
            proxy.forward();
            ledger.until_length(sent).await;
        }
        relay.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolled_back_wake_up_harms_nothing_and_off_by_default_nothing_is_sent() {
    run(Broker::RabbitMq, |fx, world: Pg| async move {
        let queue = fx.queue("orders").await;
        let outbox = world.outbox();
        let relay = OutboxRelay::new(&fx.mq, outbox.clone()).poll_interval(POLL).start();
        let _listener = outbox.listen();
        let there = Pg::open(world.name()).await;
        let mut tx = there.begin().await;
        there.add_in(&mut tx, vec![record(&queue, 1)]).await;
        there.outbox().notify_every(Duration::ZERO).wake();
        Pg::rollback(tx).await;
        there.add(vec![record(&queue, 2)]).await;
        there.outbox().wake();
        // The wake-up of this process still works beside the listener.
        eventually("the record", async || {
            outbox.wake();
            relay.published() == 1
        })
        .await;
        relay.close().await;
    })
    .await;
}

fn record(queue: &str, n: usize) -> OutboxRecord {
    OutboxRecord::bytes("", queue, "text/plain", format!("free:{n}"))
}
