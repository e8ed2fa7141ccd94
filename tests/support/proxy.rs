//! A TCP proxy that cuts and stalls connections on command.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
};

/// What the proxy does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    /// Reads and forwards nothing, in both directions.
    Stall,
    /// Swallows what the server says.
    Deafen,
    /// Closes every connection and refuses new ones.
    Refuse,
}

/// A proxy in front of a server; it ends with its last handle.
#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    cuts: Arc<watch::Sender<u64>>,
}

impl Proxy {
    /// Listens on a free port and forwards to `target`.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(Mode::Forward);
        let (cuts, cut) = watch::channel(0);
        let target = target.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *modes.borrow() == Mode::Refuse {
                    continue;
                }
                tokio::spawn(serve(client, target.clone(), modes.clone(), cut.clone()));
            }
        });
        Self { address, mode: Arc::new(mode), cuts: Arc::new(cuts) }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes every connection; new ones are forwarded.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Keeps connections open and forwards nothing.
    pub fn stall(&self) {
        self.mode.send_replace(Mode::Stall);
    }

    /// Forwards what clients say and swallows what the server answers.
    pub fn deafen(&self) {
        self.mode.send_replace(Mode::Deafen);
    }

    /// Closes every connection and refuses new ones.
    pub fn refuse(&self) {
        self.mode.send_replace(Mode::Refuse);
        self.cut();
    }

    /// Forwards again.
    pub fn forward(&self) {
        self.mode.send_replace(Mode::Forward);
    }
}

async fn serve(
    client: TcpStream,
    target: String,
    modes: watch::Receiver<Mode>,
    mut cut: watch::Receiver<u64>,
) {
    cut.mark_unchanged();
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, modes.clone(), false) => {}
        () = pump(from_server, to_client, modes, true) => {}
        _ = cut.changed() => {}
    }
}

async fn pump(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut modes: watch::Receiver<Mode>,
    is_answer: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if modes.wait_for(|mode| *mode != Mode::Stall).await.is_err() {
            return;
        }
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        if modes.wait_for(|mode| *mode != Mode::Stall).await.is_err() {
            return;
        }
        if is_answer && *modes.borrow() == Mode::Deafen {
            continue;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
