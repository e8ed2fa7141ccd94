//! Connections, processes and brokers that go away while messages wait.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use acemq::{AceMq, testing::MemoryBroker};
use futures::{StreamExt, stream};

use crate::{
    Arrivals, prefix,
    support::{Broker, amqp_url, proxy::Proxy, run, until_ready},
};

/// A scheduler in a process of its own; dropping it kills the process.
struct Delivering(Child);

impl Delivering {
    fn spawn(prefix: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["surviving::child", "--exact", "--ignored", "--nocapture"])
            .env("ACEMQ_CHILD", prefix)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_killed_between_hops_lose_nothing() {
    const MESSAGES: usize = 400;
    run(Broker::RabbitMq, |fx| async move {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let prefix = prefix(&fx);
        let scheduler = fx.mq.scheduler().prefix(prefix.as_str()).without_delivery().await.unwrap();
        let mut delivering = vec![Delivering::spawn(&prefix), Delivering::spawn(&prefix)];
        for number in 0..MESSAGES {
            let delay = Duration::from_millis(1000 + 7 * number as u64);
            scheduler.after(delay, "", &queue, &number).await.unwrap();
        }
        let mut came = std::collections::HashSet::new();
        let mut kills = 0;
        while came.len() < MESSAGES {
            came.insert(arrivals.next().await.1.body().clone());
            if came.len() >= MESSAGES * (kills + 1) / 6 && kills < 5 {
                kills += 1;
                delivering[kills % 2] = Delivering::spawn(&prefix);
            }
        }
        drop(delivering);
        assert_eq!(fx.mq.queue_length(&format!("{prefix}.due.dlq")).await.unwrap(), Some(0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the scheduler process of the kill test, which starts it by its name"]
async fn child() {
    let prefix = std::env::var("ACEMQ_CHILD").expect("only the kill test starts this");
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let _scheduler = mq.scheduler().prefix(prefix).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_nothing() {
    const MESSAGES: usize = 200;
    run(Broker::RabbitMq, |fx| async move {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let prefix = prefix(&fx);
        let url = url::Url::parse(&amqp_url()).unwrap();
        let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672));
        let proxy = Proxy::to(&target).await;
        let mut through = url;
        through.set_host(Some("127.0.0.1")).unwrap();
        through.set_port(Some(proxy.port())).unwrap();
        let mq = AceMq::connect(through.as_str()).await.unwrap();
        let scheduler = mq.scheduler().prefix(prefix.as_str()).await.unwrap();
        let mut scheduled = 0;
        for number in 0..MESSAGES {
            // A lost confirm leaves open whether it is scheduled; nothing else is an error.
            match scheduler.after(Duration::from_millis(1500), "", &queue, &number).await {
                Ok(_) => scheduled += 1,
                Err(error) => assert!(error.may_have_been_published(), "{error:?}"),
            }
            if number % 40 == 39 {
                proxy.cut();
            }
        }
        assert!(scheduled > MESSAGES / 2);
        until_ready(&mq).await;
        proxy.cut();
        arrivals.bodies(scheduled).await;
        mq.close().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_broker_in_the_middle_of_the_delay_loses_nothing() {
    const MESSAGES: usize = 200;
    let url = "memory://scheduler-restart";
    let broker = MemoryBroker::of(url);
    let mq = AceMq::connect(url).await.unwrap();
    let target = acemq::Topology::new().queue(acemq::Queue::new("target"));
    mq.declare(&target).await.unwrap();
    let mut arrivals = Arrivals::at(&mq, "target").await;
    let scheduler = mq.scheduler().await.unwrap();
    for number in 0..MESSAGES {
        let delay = Duration::from_secs(5 + number as u64 / 4);
        scheduler.after(delay, "", "target", &number).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    broker.refuse_connections(true);
    broker.restart();
    tokio::time::sleep(Duration::from_secs(30)).await;
    broker.refuse_connections(false);
    arrivals.bodies(MESSAGES).await;
}

/// `ACEMQ_SCHEDULED` sets how many wait; 1,000,000 is the long form, the short one 20,000.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_scheduled_takes_no_memory_in_the_process() {
    let many: usize = std::env::var("ACEMQ_SCHEDULED").map_or(20_000, |many| many.parse().unwrap());
    run(Broker::RabbitMq, |fx| async move {
        let prefix = prefix(&fx);
        let scheduler = fx.mq.scheduler().prefix(prefix.as_str()).await.unwrap();
        let schedule = async |count: usize| {
            let sends = (0..count).map(|number| {
                let (scheduler, payload) = (&scheduler, (number, "x".repeat(200)));
                let delay = Duration::from_hours(2);
                async move { scheduler.after(delay, "", "nobody.reads.this.yet", &payload).await }
            });
            let mut sends = stream::iter(sends).buffer_unordered(500);
            while let Some(sent) = sends.next().await {
                sent.unwrap();
            }
        };
        schedule(many / 10).await;
        let before = resident();
        schedule(many - many / 10).await;
        let grown = resident().saturating_sub(before);
        fx.until_length(&format!("{prefix}.1h"), many as u64).await;
        println!("{many} waiting, {} KiB more in the process", grown / 1024);
        // Buffers of the connection may grow; a list of what waits would take far more.
        assert!(grown < 16 * 1024 * 1024 + many * 16, "{grown} bytes for {many} messages");
    })
    .await;
}

/// The bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
