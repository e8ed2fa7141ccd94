//! What stays behind: nothing.

use std::time::Duration;

use tokio::runtime::Handle;

use crate::{
    World,
    support::{Inbox, eventually, until_ready, until_reconnecting},
};

const ROUNDS: usize = 50;

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_lost_connections_leave_no_task_and_no_socket() {
    let world = World::new().await;
    let mq = world.options().reconnect_cap(Duration::from_millis(100)).connect().await.unwrap();
    let queue = world.fx.queue("orders").await;
    let mut inbox = Inbox::of(&mq, &queue).await;
    let publisher = mq.publisher::<u32>("", queue.as_str());
    publisher.send(&0).await.unwrap();
    inbox.next().await;
    let before = tasks();
    for round in 1..=ROUNDS {
        world.proxy.cut();
        until_reconnecting(&mq).await;
        until_ready(&mq).await;
        if round % 10 == 0 {
            publisher.send(&0).await.unwrap();
            inbox.next().await;
        }
    }
    eventually("two connections", async || world.proxy.open() == 2).await;
    // Those of the last connections may still be ending.
    eventually(&format!("no more than {before} tasks"), async || tasks() <= before + 2).await;
    assert!(world.proxy.attempts() < 4 * ROUNDS, "{} attempts", world.proxy.attempts());

    let _ = mq.close().await;
    drop((inbox, publisher, mq));
    eventually("no connection", async || world.proxy.open() == 0).await;
    world.fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_handles_leave_no_task_and_no_socket() {
    let world = World::new().await;
    let queue = world.fx.queue("orders").await;
    let before = tasks();
    for round in 0..40_u32 {
        let mq = world.connect().await;
        if round % 10 == 0 {
            let mut inbox = Inbox::of(&mq, &queue).await;
            mq.publisher::<u32>("", queue.as_str()).send(&round).await.unwrap();
            inbox.next().await;
        }
        // Closed in good order or simply dropped.
        if round % 2 == 0 {
            mq.close().await;
        }
    }
    eventually("no connection", async || world.proxy.open() == 0).await;
    eventually(&format!("no more than {before} tasks"), async || tasks() <= before + 2).await;
    world.fx.clean_up().await;
}
