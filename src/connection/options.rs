//! How to connect.

use std::{fmt, sync::Arc, time::Duration};

use super::{AceMq, Core};
use crate::{
    error::{Error, Result},
    transport::{Transport, memory::MemoryTransport},
};

/// Options of a connection; see [`AceMq::options`].
///
/// `Debug` prints neither the URL's credentials nor a private key.
#[derive(Clone)]
#[must_use = "options do nothing until `connect` is called"]
pub struct ConnectOptions {
    url: String,
    certificates: Certificates,
    pub(crate) client_name: String,
    pub(crate) heartbeat: Duration,
    pub(crate) attempt_timeout: Duration,
    pub(crate) wait_for_broker: Duration,
    pub(crate) reconnect_cap: Duration,
    pub(crate) confirm_timeout: Duration,
    pub(crate) wait_when_blocked: bool,
    pub(crate) max_in_flight: usize,
    pub(crate) max_body_size: usize,
    pub(crate) shutdown_timeout: Duration,
}

#[derive(Clone, Default)]
struct Certificates {
    authority: Option<String>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl ConnectOptions {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            certificates: Certificates::default(),
            client_name: "acemq".into(),
            heartbeat: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(10),
            wait_for_broker: Duration::from_secs(10),
            reconnect_cap: Duration::from_secs(5),
            confirm_timeout: Duration::from_secs(30),
            wait_when_blocked: false,
            max_in_flight: 1000,
            max_body_size: 16 * 1024 * 1024,
            shutdown_timeout: Duration::from_secs(20),
        }
    }

    /// Names the application, in the broker's tools and in each message's origin.
    /// Default: `acemq`.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// Sets the heartbeat; a dead connection is noticed within about two of them. A heartbeat in
    /// the URL wins. Whole seconds, at least one. Default: 10 s.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// Limits one attempt to connect. Default: 10 s.
    pub fn attempt_timeout(mut self, limit: Duration) -> Self {
        self.attempt_timeout = limit;
        self
    }

    /// Sets how long [`connect`](Self::connect) goes on trying when the broker cannot be reached,
    /// for instance because it starts together with this process. The last attempt may end later,
    /// within its [`attempt_timeout`](Self::attempt_timeout). A refusal for good is reported at
    /// once. Default: 10 s.
    pub fn wait_for_broker(mut self, limit: Duration) -> Self {
        self.wait_for_broker = limit;
        self
    }

    /// Sets the longest pause between two attempts to reconnect; the first follows within 100 ms.
    /// Default: 5 s.
    pub fn reconnect_cap(mut self, pause: Duration) -> Self {
        self.reconnect_cap = pause;
        self
    }

    /// Limits a publish from the call to the broker's confirm, including the wait for a
    /// connection, and every other operation on the broker likewise. Default: 30 s.
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }

    /// Makes publishes wait, up to the confirm timeout, while the broker blocks publishing.
    /// Default: they fail at once with [`Error::Blocked`].
    pub fn wait_when_blocked(mut self, wait: bool) -> Self {
        self.wait_when_blocked = wait;
        self
    }

    /// Limits the publishes that wait for their confirm; more wait for a place. Default: 1000.
    pub fn max_in_flight(mut self, publishes: usize) -> Self {
        self.max_in_flight = publishes;
        self
    }

    /// Limits the bytes of a payload; a larger one is refused before it is sent. Keep it at or
    /// below the broker's `max_message_size`. Default: 16 MiB.
    pub fn max_body_size(mut self, bytes: usize) -> Self {
        self.max_body_size = bytes;
        self
    }

    /// Sets the deadline that running handlers share when the handle is closed. Default: 20 s.
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.shutdown_timeout = limit;
        self
    }

    /// Trusts the certificate authorities of this PEM text beside the system's. Default: none.
    pub fn ca_certificate(mut self, pem: impl Into<String>) -> Self {
        self.certificates.authority = Some(pem.into());
        self
    }

    /// Presents a client certificate, with its private key, both in PEM. Needs `amqps://`.
    /// Default: none.
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client = Some((pem.into(), key.into()));
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for a URL or option that cannot work.
    /// - [`Error::Refused`] for wrong credentials or a missing virtual host, at once.
    /// - [`Error::Connect`] if the broker could not be reached within
    ///   [`wait_for_broker`](Self::wait_for_broker).
    pub async fn connect(self) -> Result<AceMq> {
        self.check()?;
        let transport = self.transport()?;
        Core::connect(transport, self).await.map(AceMq::over)
    }

    fn check(&self) -> Result<()> {
        crate::topology::check_name("client_name", &self.client_name)?;
        if self.max_in_flight == 0 {
            return Err(Error::invalid("max_in_flight", 0, "lets no publish through"));
        }
        if self.max_in_flight > tokio::sync::Semaphore::MAX_PERMITS {
            return Err(Error::invalid("max_in_flight", self.max_in_flight, "is too large"));
        }
        for (option, limit) in [
            ("heartbeat", self.heartbeat),
            ("attempt_timeout", self.attempt_timeout),
            ("confirm_timeout", self.confirm_timeout),
            ("reconnect_cap", self.reconnect_cap),
        ] {
            if limit.is_zero() {
                return Err(Error::invalid(option, "0", "leaves no time"));
            }
        }
        Ok(())
    }

    fn transport(&self) -> Result<Arc<dyn Transport>> {
        match self.url.split_once("://") {
            Some(("memory", "")) => Ok(Arc::new(MemoryTransport::private())),
            Some(("memory", name)) => Ok(Arc::new(MemoryTransport::named(name))),
            #[cfg(feature = "rabbitmq")]
            Some(("amqp" | "amqps", _)) => self.rabbitmq(),
            #[cfg(not(feature = "rabbitmq"))]
            Some(("amqp" | "amqps", _)) => Self::rabbitmq(),
            Some((scheme, _)) => Err(Error::invalid(
                "url",
                format!("{scheme}://…"),
                "has an unknown scheme; use amqp://, amqps:// or memory://",
            )),
            None => {
                Err(Error::invalid("url", "…", "has no scheme; use amqp://, amqps:// or memory://"))
            }
        }
    }

    #[cfg(feature = "rabbitmq")]
    fn rabbitmq(&self) -> Result<Arc<dyn Transport>> {
        use crate::transport::rabbitmq::{Certificates, RabbitMqTransport};

        let certificates = Certificates {
            authority: self.certificates.authority.clone(),
            client: self.certificates.client.clone(),
        };
        let transport =
            RabbitMqTransport::new(&self.url, self.heartbeat, self.max_in_flight, certificates)?;
        Ok(Arc::new(transport))
    }

    #[cfg(not(feature = "rabbitmq"))]
    fn rabbitmq() -> Result<Arc<dyn Transport>> {
        Err(Error::invalid("url", "amqp://…", "needs the feature `rabbitmq` of this crate"))
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("client_name", &self.client_name)
            .field("heartbeat", &self.heartbeat)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("ca_certificate", &self.certificates.authority.is_some())
            .field("client_certificate", &self.certificates.client.is_some())
            .finish_non_exhaustive()
    }
}
