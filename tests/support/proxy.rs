//! A TCP proxy that cuts and stalls connections on command, and counts them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

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
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    attempts: AtomicUsize,
    open: AtomicUsize,
}

impl Proxy {
    /// Listens on a free port and forwards to `target`.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(Mode::Forward);
        let (cuts, cut) = watch::channel(0);
        let counts = Arc::<Counts>::default();
        tokio::spawn(accept(listener, target.to_owned(), modes, cut, Arc::clone(&counts)));
        Self { address, mode: Arc::new(mode), cuts: Arc::new(cuts), counts }
    }

    /// Stands in front of the server of a URL; also returns the URL that leads through it.
    pub async fn in_front_of(url: &str, default_port: u16) -> (Self, String) {
        let mut url = url::Url::parse(url).unwrap();
        let port = url.port().unwrap_or(default_port);
        let proxy = Self::to(&format!("{}:{port}", url.host_str().unwrap())).await;
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(proxy.port())).unwrap();
        (proxy, url.into())
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How often a client has connected, refused connections included.
    pub fn attempts(&self) -> usize {
        self.counts.attempts.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// Closes every connection; new ones are forwarded.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Keeps connections open and forwards nothing.
    pub fn stall(&self) {
        self.mode.send_replace(Mode::Stall);
    }

    /// Forwards what clients say and swallows what the server answers. Cut before the stream is used
    /// again: it has a hole.
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

async fn accept(
    listener: TcpListener,
    target: String,
    mut modes: watch::Receiver<Mode>,
    mut cut: watch::Receiver<u64>,
    counts: Arc<Counts>,
) {
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gone(&mut modes) => return,
        };
        let Ok((client, _)) = client else { return };
        counts.attempts.fetch_add(1, Ordering::SeqCst);
        // Marked before the mode is read, so that no connection slips through `refuse`.
        cut.mark_unchanged();
        if *modes.borrow() == Mode::Refuse {
            continue;
        }
        let serving = serve(client, target.clone(), modes.clone(), cut.clone());
        let counts = Arc::clone(&counts);
        tokio::spawn(async move {
            counts.open.fetch_add(1, Ordering::SeqCst);
            serving.await;
            counts.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Returns when the last handle is gone.
async fn gone(modes: &mut watch::Receiver<Mode>) {
    while modes.changed().await.is_ok() {}
}

async fn serve(
    client: TcpStream,
    target: String,
    modes: watch::Receiver<Mode>,
    mut cut: watch::Receiver<u64>,
) {
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

/// A server that accepts connections, reads what comes, and never says a word.
pub struct Mute {
    address: SocketAddr,
    open: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl Mute {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, accepted) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&open), Arc::clone(&accepted));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (open, accepted) = counts.clone();
                accepted.fetch_add(1, Ordering::SeqCst);
                open.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut buffer = [0; 1024];
                    while let Ok(1..) = client.read(&mut buffer).await {}
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, open, accepted }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many clients have connected so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How many clients have not closed their connection.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}
