//! The socket of a connection, which closes when its owner says so, whatever lapin is doing.
//!
//! lapin runs each connection on a thread of its own. That thread goes on when the future that
//! dials is dropped, and when the broker does not answer a close: with a peer that says nothing it
//! would stay, socket included, for as long as the process. So the socket is opened here, and a
//! second handle on it is kept for shutting it down.

use std::{
    io,
    net::Shutdown,
    sync::{Arc, Mutex, PoisonError},
};

use lapin::{
    tcp::{AsyncTcpStream, OwnedTLSConfig},
    uri::{AMQPScheme, AMQPUri},
};
use tokio::net::{TcpStream, lookup_host};
use tokio_util::sync::CancellationToken;

/// Closes its connection's socket when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Socket {
    handle: SocketHandle,
}

/// Closes a socket without owning it.
#[derive(Debug, Clone, Default)]
pub(super) struct SocketHandle {
    open: Arc<Mutex<Option<std::net::TcpStream>>>,
    closed: CancellationToken,
}

impl Socket {
    pub(super) fn handle(&self) -> SocketHandle {
        self.handle.clone()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.handle.close();
    }
}

impl SocketHandle {
    /// Shuts the socket down, or ends the attempt to open it.
    pub(super) fn close(&self) {
        self.closed.cancel();
        if let Some(socket) = self.lock().take() {
            // It may have been closed by the other side.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Keeps a second handle on the socket.
    fn keep(&self, stream: &TcpStream) -> io::Result<()> {
        let second = second_handle(stream)?;
        let mut open = self.lock();
        if self.closed.is_cancelled() {
            return Err(given_up());
        }
        *open = Some(second);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<std::net::TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(unix)]
fn second_handle(stream: &TcpStream) -> io::Result<std::net::TcpStream> {
    use std::os::fd::AsFd;
    stream.as_fd().try_clone_to_owned().map(Into::into)
}

#[cfg(windows)]
fn second_handle(stream: &TcpStream) -> io::Result<std::net::TcpStream> {
    use std::os::windows::io::AsSocket;
    stream.as_socket().try_clone_to_owned().map(Into::into)
}

fn given_up() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the attempt to connect was given up")
}

/// Connects through lapin on a socket that `socket` closes.
pub(super) async fn connect(
    uri: AMQPUri,
    properties: lapin::ConnectionProperties,
    tls: OwnedTLSConfig,
    socket: SocketHandle,
) -> lapin::Result<lapin::Connection> {
    let runtime = lapin::runtime::default_runtime()?;
    // In place, so that its types follow from the runtime's, which has no name here.
    lapin::Connection::connector(
        uri,
        runtime,
        async move |uri, runtime| {
            let opening = async {
                let host = uri.authority.host.as_str();
                let addresses: Vec<_> = lookup_host((host, uri.authority.port)).await?.collect();
                let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                if let AsyncTcpStream::Plain(plain) = &stream {
                    socket.keep(plain.get_ref())?;
                }
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => stream.into_tls(host, tls.as_ref()).await,
                }
            };
            let opened = tokio::select! {
                opened = opening => opened,
                () = socket.closed.cancelled() => Err(given_up()),
            };
            opened.map_err(lapin::Error::from)
        },
        properties,
    )
    .await
}
