//! Failures that users of comparable libraries met, tried on this one. `docs/field-cases.md` names
//! each case with the test that holds it; those that have no other place are here.

#[path = "../support/mod.rs"]
mod support;

mod closing;
mod copies;
mod cuts;
mod panics;

use std::time::Duration;

use acemq::{AceMq, ConnectOptions, testing::MemoryBroker};
use support::{Broker, Fixture, amqp_url, proxy::Proxy, until_reconnecting};

/// A broker of either kind whose connections can be cut.
struct Cuttable {
    fx: Fixture,
    proxy: Option<Proxy>,
}

impl Cuttable {
    async fn on(broker: Broker) -> Self {
        let proxy = match broker {
            Broker::Memory => None,
            Broker::RabbitMq => Some(Proxy::to(&address_of_the_broker()).await),
        };
        Self { fx: Fixture::on(broker).await, proxy }
    }

    /// Options of a connection that can be cut, and is soon back.
    fn options(&self) -> ConnectOptions {
        let url = match &self.proxy {
            None => self.fx.url.clone(),
            Some(proxy) => {
                let through = format!("127.0.0.1:{}", proxy.port());
                amqp_url().replace(&address_of_the_broker(), &through)
            }
        };
        AceMq::options(url)
            .reconnect_cap(Duration::from_millis(200))
            .shutdown_timeout(Duration::from_secs(5))
    }

    /// Cuts every connection, and waits until `mq` has noticed.
    async fn cut(&self, mq: &AceMq) {
        match &self.proxy {
            None => {
                let name = self.fx.url.strip_prefix("memory://").unwrap();
                MemoryBroker::of(name).disconnect_all("cut by the test");
            }
            Some(proxy) => proxy.cut(),
        }
        until_reconnecting(mq).await;
    }
}

fn address_of_the_broker() -> String {
    let url = url::Url::parse(&amqp_url()).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672))
}

/// Makes each case a test on `memory://` and a test on RabbitMQ.
macro_rules! on_both_brokers {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(crate::support::Broker::Memory).await;
                }
            )*
        }

        mod rabbitmq {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(crate::support::Broker::RabbitMq).await;
                }
            )*
        }
    };
}
pub(crate) use on_both_brokers;
