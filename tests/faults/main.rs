//! What breaks: connections that are cut, stalled, refused and killed, and how the library gets
//! over it. Nothing that returned `Ok` is lost, no error claims more than is known, nothing hangs.
//!
//! Most cases run behind a proxy in front of RabbitMQ; where the fault exists on `memory://`, they
//! run there too. What concerns the whole broker is in `tests/broker_wide`.

#[path = "../support/mod.rs"]
mod support;

mod channels;
mod connecting;
mod half_open;
mod hostile;
mod leaks;
mod ledger;
mod memory;
mod reconnecting;
mod stopping;

use acemq::{AceMq, ConnectOptions};
use support::{Broker, Fixture, amqp_url, proxy::Proxy};

/// RabbitMQ behind a proxy, and a way around it for the test itself.
struct World {
    fx: Fixture,
    proxy: Proxy,
    url: String,
}

impl World {
    async fn new() -> Self {
        let proxy = Proxy::to(&address_of_the_broker()).await;
        let url = through(proxy.port());
        Self { fx: Fixture::on(Broker::RabbitMq).await, proxy, url }
    }

    /// Options of a connection through the proxy.
    fn options(&self) -> ConnectOptions {
        AceMq::options(&self.url).shutdown_timeout(std::time::Duration::from_secs(5))
    }

    async fn connect(&self) -> AceMq {
        self.options().connect().await.unwrap()
    }

    async fn clean_up(self, mq: AceMq) {
        self.proxy.forward();
        let _ = mq.close().await;
        self.fx.clean_up().await;
    }
}

/// The broker's URL with another port of this machine.
fn through(port: u16) -> String {
    let url = amqp_url();
    let address = address_of_the_broker();
    let (before, after) = url.rsplit_once(&address).expect("the URL holds its address");
    format!("{before}127.0.0.1:{port}{after}")
}

/// Host and port of the broker.
fn address_of_the_broker() -> String {
    let url = amqp_url();
    let rest = url.split_once("://").expect("a URL").1;
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split('/').next().expect("an address").to_owned()
}
