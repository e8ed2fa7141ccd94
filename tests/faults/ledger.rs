//! The ledger while connections are cut.

use std::time::Duration;

use acemq::{AceMq, Error, Queue, Topology, testing::MemoryBroker};

use crate::{
    World,
    support::{eventually, ledger::keep_the_books, unique, until_reconnecting},
};

/// The longest pause between attempts to reconnect, so that many cuts fit into a short test.
const PAUSE: Duration = Duration::from_millis(200);

/// How often the connections are cut: few times in the short form.
fn cuts() -> usize {
    if std::env::var_os("ACEMQ_FAULTS_LONG").is_some() { 100 } else { 10 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_confirmed_is_lost_while_connections_to_rabbitmq_are_cut() {
    let world = World::new().await;
    let mq = world.options().reconnect_cap(PAUSE).connect().await.unwrap();
    let queue = world.fx.name("ledger");
    keep_the_books(&mq, &queue, cuts(), async || {
        world.proxy.cut();
        until_reconnecting(&mq).await;
    })
    .await;
    world.clean_up(mq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_confirmed_is_lost_while_connections_in_memory_are_cut() {
    let name = unique("ledger");
    let broker = MemoryBroker::of(&name);
    let options = AceMq::options(format!("memory://{name}"));
    let mq = options.reconnect_cap(PAUSE).connect().await.unwrap();
    keep_the_books(&mq, "orders", cuts(), async || {
        broker.disconnect_all("cut by the test");
        until_reconnecting(&mq).await;
    })
    .await;
    assert_eq!(broker.unsettled("orders"), 0);
    assert_eq!(broker.messages("orders.dlq"), []);
    mq.close().await;
}

/// Held confirms make the loss of an answer certain: each of these publishes was made and failed.
#[tokio::test(start_paused = true)]
async fn a_publish_whose_confirm_is_lost_says_that_it_may_have_been_published() {
    let name = unique("confirms");
    let broker = MemoryBroker::of(&name);
    let mq = AceMq::connect(format!("memory://{name}")).await.unwrap();
    mq.declare(&Topology::new().queue(Queue::new("orders"))).await.unwrap();
    broker.hold_confirms(true);
    let publisher = mq.publisher::<u32>("", "orders").confirm_timeout(Duration::from_secs(5));
    let sends: Vec<_> = (0..10)
        .map(|number| {
            let publisher = publisher.clone();
            tokio::spawn(async move { publisher.send(&number).await })
        })
        .collect();
    eventually("all to be under way", async || broker.unconfirmed() == 10).await;
    broker.disconnect_all("cut by the test");
    for send in sends {
        let error = send.await.unwrap().unwrap_err();
        assert!(matches!(&error, Error::Interrupted { reason } if reason == "cut by the test"));
    }
    assert_eq!(broker.messages("orders").len(), 10);

    // With the connection up and no answer, the limit ends the wait.
    let error = publisher.send(&11).await.unwrap_err();
    assert!(matches!(error, Error::ConfirmTimeout { .. }), "{error}");
    broker.hold_confirms(false);
    publisher.send(&12).await.unwrap();
    mq.close().await;
}
