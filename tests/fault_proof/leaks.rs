//! One process with every pattern, over many forced recoveries: what it holds does not grow.

use std::{collections::BTreeSet, fmt, time::Duration};

use acemq::{
    AceMq, Consumer, ConsumerState, Error, HealthStatus, Message, OutboxRelay, Queue, Requester,
    Topology,
};
use tokio::runtime::Handle;

use crate::{
    PATIENCE, accounts,
    books::Books,
    office, shop, steps,
    support::{
        amqp_url, eventually, proxy::Proxy, rabbitmqctl::rabbitmqctl, until_ready,
        until_reconnecting,
    },
    system::{Site, System, setting},
};

/// Recoveries before the first count, after which nothing is new any more.
const WARM_UP: u64 = 8;
/// How much the process may grow, whatever the number of recoveries.
const GROWTH: usize = 12 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_recoveries_leave_nothing_behind() {
    let recoveries = setting("ACEMQ_FAULT_RECOVERIES").unwrap_or(40);
    let system = System::create().await;
    let world = World::start(&system).await;
    for round in 0..WARM_UP {
        world.recover(round).await;
    }
    let before = world.held().await;
    for round in 0..recoveries {
        world.recover(round).await;
    }
    let after = world.held().await;
    println!("{recoveries} recoveries, before and after:\n{before}\n{after}");
    before.assert_not_grown(&after);
    world.close().await;
    system.remove().await;
}

/// What the process holds, here and on the broker.
struct Held {
    sockets: usize,
    channels: usize,
    queues: BTreeSet<String>,
    tasks: usize,
    components: usize,
    resident: usize,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sockets, channels, queues, tasks, components, resident } = self;
        let (queues, resident) = (queues.len(), resident >> 10);
        write!(f, "{sockets} sockets, {channels} channels, {queues} queues, {tasks} tasks, ")?;
        write!(f, "{components} components, {resident} KiB")
    }
}

impl Held {
    fn assert_not_grown(&self, after: &Self) {
        assert_eq!((self.sockets, after.sockets), (2, 2), "connections");
        assert_eq!(self.channels, after.channels, "channels");
        assert_eq!(self.queues, after.queues, "queues");
        assert_eq!(self.components, after.components, "components");
        assert!(after.tasks <= self.tasks + 3, "tasks: {} and {}", self.tasks, after.tasks);
        let grown = after.resident.saturating_sub(self.resident);
        assert!(grown < GROWTH, "{} KiB more in memory", grown / 1024);
    }
}

/// Every service in this process, on one handle behind a proxy.
struct World<'a> {
    system: &'a System,
    site: Site,
    client: String,
    proxy: Proxy,
    requester: Requester,
    ledger: acemq::OrderedQueue<crate::system::Order>,
    extra: Consumer,
    relay: acemq::RunningRelay,
    _running: Box<dyn std::any::Any>,
}

impl<'a> World<'a> {
    async fn start(system: &'a System) -> Self {
        let (proxy, url) = Proxy::in_front_of(&amqp_url(), 5672).await;
        let client = system.site.names.of("leaks");
        let options = AceMq::options(url)
            .client_name(&*client)
            .reconnect_cap(Duration::from_millis(100))
            .shutdown_timeout(Duration::from_secs(10));
        let site = Site { mq: options.connect().await.unwrap(), number: 1, ..system.site.clone() };
        let relay = OutboxRelay::new(&site.mq, site.outbox())
            .lease(Duration::from_secs(2))
            .poll_interval(Duration::from_millis(50));
        let running = (
            accounts::start(&site).await,
            steps::start_check_and_pack(&site).await,
            steps::start_price(&site).await,
            office::start(&site).await,
        );
        Self {
            system,
            client,
            proxy,
            requester: site.mq.requester().await.unwrap(),
            ledger: accounts::ledger(&site.mq, &site.names).declare().await.unwrap(),
            extra: extra(&site).await,
            relay: relay.start(),
            _running: Box::new(running),
            site,
        }
    }

    /// Forces one recovery, and has an order and a call go through the system with it.
    async fn recover(&self, round: u64) {
        let disturbed = async {
            match round % 4 {
                0 => self.lose_the_connections().await,
                1 => self.lose_a_channel_to_a_missing_exchange().await,
                2 => self.lose_a_channel_to_other_arguments().await,
                _ => self.lose_a_consumer_with_its_queue().await,
            }
        };
        let ordered = shop::place(&self.site, &self.ledger, "account");
        let ((), ordered, ()) =
            tokio::join!(disturbed, ordered, shop::ask(&self.site, &self.requester));
        ordered.unwrap();
    }

    async fn lose_the_connections(&self) {
        self.proxy.cut();
        until_reconnecting(&self.site.mq).await;
        until_ready(&self.site.mq).await;
    }

    /// 404.
    async fn lose_a_channel_to_a_missing_exchange(&self) {
        let nowhere = self.site.mq.publisher::<u32>(self.site.names.of("no-exchange"), "any");
        let error = nowhere.send(&1).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    }

    /// 406.
    async fn lose_a_channel_to_other_arguments(&self) {
        let other = Queue::classic(self.site.names.of("bill"));
        let refused = self.site.mq.declare(&Topology::new().queue(other)).await;
        assert!(refused.is_err(), "a classic queue in place of a quorum queue");
    }

    async fn lose_a_consumer_with_its_queue(&self) {
        let received = self.extra.stats().received;
        self.system.site.mq.delete_queue(self.extra.queue()).await.unwrap();
        let publisher = self.system.site.mq.publisher::<u32>("", self.extra.queue());
        eventually("the queue to be back", async || publisher.send(&1).await.is_ok()).await;
        eventually("its consumer", async || self.extra.stats().received > received).await;
        eventually("its state", async || self.extra.state() == ConsumerState::Running).await;
    }

    /// Counts when everything that was ordered has come through, and nothing is under way.
    async fn held(&self) -> Held {
        until_ready(&self.site.mq).await;
        Books::balanced(self.system, PATIENCE).await.check_complete();
        self.system.until_drained(PATIENCE).await;
        eventually("every call to be over", async || self.requester.stats().in_flight == 0).await;
        eventually("two sockets", async || self.proxy.open() == 2).await;
        eventually("everything to be up", async || {
            self.site.mq.health().await.status == HealthStatus::Up
        })
        .await;
        Held {
            sockets: self.proxy.open(),
            channels: self.channels().await,
            queues: self.system.queues().await.into_iter().map(|(name, _)| name).collect(),
            tasks: settled(|| Handle::current().metrics().num_alive_tasks()).await,
            components: self.site.mq.health().await.components.len(),
            resident: resident(),
        }
    }

    /// The channels of this process that the broker knows.
    async fn channels(&self) -> usize {
        let connections = rabbitmqctl(&["list_connections", "pid", "client_properties"]).await;
        let ours = connections.lines().filter(|line| line.contains(&*self.client));
        let ours: Vec<&str> = ours.filter_map(|line| line.split_whitespace().next()).collect();
        let channels = rabbitmqctl(&["list_channels", "connection"]).await;
        channels.lines().filter(|line| ours.contains(&line.trim())).count()
    }

    async fn close(self) {
        self.relay.close().await;
        self.requester.close().await;
        self.site.mq.close().await;
        drop((self.site, self.extra, self.ledger, self._running));
        eventually("no socket", async || self.proxy.open() == 0).await;
    }
}

/// A queue that is deleted again and again, with its consumer.
async fn extra(site: &Site) -> Consumer {
    let queue = site.names.of("extra");
    site.mq.declare(&Topology::new().queue(Queue::classic(&*queue))).await.unwrap();
    site.mq.consumer::<u32>(queue).start(|_: Message<u32>| async { Ok(()) }).await.unwrap()
}

/// The least that is seen in a while: pools and relays have tasks that come and go.
async fn settled(look: impl Fn() -> usize) -> usize {
    let mut least = usize::MAX;
    for _ in 0..50 {
        least = least.min(look());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    least
}

/// The bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
