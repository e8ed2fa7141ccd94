//! RabbitMQ by lapin: the only code that names it.
//!
//! lapin can recover connections by itself, but not a channel that a 404 or 406 closed, nor a
//! consumer that the broker cancelled. Since those need supervision above this seam anyway, its
//! recovery stays off and one mechanism serves every kind of loss: a link that is lost stays lost,
//! and the layers above dial a new one.

mod confirms;
mod consumer;
mod convert;
mod declare;
mod failure;
mod link;
#[cfg(feature = "management")]
mod management;
mod publisher;
mod socket;

use std::{str::FromStr, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use lapin::{
    ConnectionProperties,
    tcp::{OwnedIdentity, OwnedTLSConfig},
    uri::{AMQPScheme, AMQPUri},
};

use super::{Link, Transport};
use crate::{
    clock::Clock,
    error::{Error, Result},
};
use link::RabbitMqLink;
#[cfg(feature = "management")]
pub use management::{ManagementApi, QueueSummary};
use socket::Socket;

/// How to reach a RabbitMQ broker.
pub(crate) struct RabbitMqTransport {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    endpoint: String,
    /// Unconfirmed publishes in flight at a time.
    window: usize,
}

/// Certificates for `amqps://`, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// Trusted beside the system's authorities.
    pub(crate) authority: Option<String>,
    /// The client's certificate and private key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl RabbitMqTransport {
    /// Reads an `amqp://` or `amqps://` URL. The heartbeat of the URL wins over `heartbeat`.
    pub(crate) fn new(
        url: &str,
        heartbeat: Duration,
        window: usize,
        certificates: Certificates,
    ) -> Result<Self> {
        // The parser's message and the URL itself can hold the password.
        let mut uri = AMQPUri::from_str(url)
            .map_err(|_| Error::invalid("url", redacted(url), "is not a valid AMQP URL"))?;
        if certificates.client.is_some() && uri.scheme != AMQPScheme::AMQPS {
            return Err(Error::invalid(
                "client_certificate",
                redacted(url),
                "needs an `amqps://` URL",
            ));
        }
        let seconds = u16::try_from(heartbeat.as_secs().max(1)).unwrap_or(u16::MAX);
        uri.query.heartbeat.get_or_insert(seconds);
        let endpoint =
            format!("{}:{}{}", uri.authority.host, uri.authority.port, vhost(&uri.vhost));
        let tls = OwnedTLSConfig {
            identity: certificates.client.map(|(pem, key)| OwnedIdentity::PKCS8 { pem, key }),
            cert_chain: certificates.authority,
        };
        Ok(Self { uri, tls, endpoint, window })
    }

    async fn open(&self, name: &str) -> Result<Arc<dyn Link>> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        // Dropped with this future, so that a dial that is given up leaves nothing behind.
        let socket = Socket::default();
        let connection =
            socket::connect(self.uri.clone(), properties, self.tls.clone(), socket.handle())
                .await
                .map_err(|error| failure::of_dial(error, &self.endpoint))?;
        Ok(Arc::new(RabbitMqLink::new(connection, socket, self.window)))
    }
}

#[cfg(test)]
impl RabbitMqTransport {
    /// Deletes exchanges, also those that hold each other by their bindings.
    pub(super) async fn delete_exchanges(&self, names: impl Iterator<Item = &str>) {
        let socket = Socket::default();
        let properties = ConnectionProperties::default();
        let connecting =
            socket::connect(self.uri.clone(), properties, self.tls.clone(), socket.handle());
        let connection = connecting.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        for name in names {
            let options = lapin::options::ExchangeDeleteOptions::default();
            channel.exchange_delete(name.into(), options).await.unwrap();
        }
        connection.close(200, "OK".into()).await.unwrap();
    }
}

impl Transport for RabbitMqTransport {
    fn dial(&self, name: &str) -> BoxFuture<'_, Result<Arc<dyn Link>>> {
        let name = name.to_owned();
        async move { self.open(&name).await }.boxed()
    }

    fn clock(&self) -> Clock {
        Clock::System
    }

    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    fn name(&self) -> &'static str {
        "rabbitmq"
    }
}

/// Prints the endpoint and leaves the credentials out.
impl std::fmt::Debug for RabbitMqTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMqTransport")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

fn vhost(name: &str) -> String {
    if name == "/" { "/".to_owned() } else { format!("/{name}") }
}

/// A URL without what stands before its last `@`: it may be a password with an `@` of its own.
fn redacted(url: &str) -> String {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    match url.rsplit_once('@') {
        Some((_, rest)) => format!("{scheme}://…@{rest}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_appears_in_an_error_or_debug_text() {
        for url in
            ["amqp://me:hunter2@[broken", "amqp://me:hunter2@host:port/v", "amqp://a:hunter2@b@c:x"]
        {
            let error =
                RabbitMqTransport::new(url, Duration::from_secs(10), 10, Certificates::default())
                    .unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let url = "amqp://me:hunter2@host/v";
        let transport =
            RabbitMqTransport::new(url, Duration::from_secs(10), 10, Certificates::default())
                .unwrap();
        assert_eq!(transport.endpoint(), "host:5672/v");
        assert!(!format!("{transport:?}").contains("hunter2"));
    }
}
