//! One live connection to RabbitMQ.

use std::{
    collections::HashSet,
    fmt,
    pin::pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use lapin::{
    Channel, Connection, Event, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::FieldTable,
};
use tokio::{sync::watch, time::timeout};

use super::{
    consumer::{self, Delivering},
    convert::short,
    declare, failure,
    publisher::Publishing,
    socket::{Socket, SocketHandle},
};
use crate::{
    error::{Error, Result},
    topology::{Binding, Topology},
    transport::{Link, LinkStatus, Outgoing, Pull, QueueInfo, Subscribe, Subscription},
};

/// How long a goodbye may take before the socket is simply dropped.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How long a declaration may wait for its answer when its connection has ended.
const LAST_WORD_WITHIN: Duration = Duration::from_millis(200);

/// How often the connection is looked at, beside listening to its events.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct RabbitMqLink {
    connection: Arc<Connection>,
    publishing: Publishing,
    exchanges: Arc<KnownExchanges>,
    status: watch::Receiver<LinkStatus>,
    frame_max: usize,
    /// Dropped last: what the others say goodbye on.
    socket: Socket,
}

impl RabbitMqLink {
    pub(super) fn new(connection: Connection, socket: Socket, window: usize) -> Self {
        let connection = Arc::new(connection);
        let exchanges = Arc::new(KnownExchanges::default());
        let frame_max = usize::try_from(connection.configuration().frame_max()).unwrap_or(0);
        let status = watch_status(&connection, socket.handle());
        let publishing = Publishing::start(&connection, &exchanges, &status, window);
        Self {
            connection,
            publishing,
            exchanges,
            status,
            // 8 bytes of each frame are its own; 0 is no limit.
            frame_max: if frame_max == 0 { usize::MAX } else { frame_max - 8 },
            socket,
        }
    }

    async fn delivering(&self) -> Result<Delivering> {
        Ok(Delivering { channel: self.channel().await?, status: self.status.clone() })
    }

    async fn answered<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        unless_lost(&self.status, operation).await
    }

    async fn channel(&self) -> Result<Channel> {
        self.connection.create_channel().await.map_err(|error| failure::of_operation(&error))
    }

    /// Runs one operation on a channel of its own, so that its failure closes nothing else.
    async fn aside<T>(&self, operation: impl AsyncFnOnce(&Channel) -> Result<T>) -> Result<T> {
        let channel = self.channel().await?;
        let result = operation(&channel).await;
        close_channel(&channel).await;
        result
    }

    async fn inspect_queue(&self, queue: &str) -> Result<Option<QueueInfo>> {
        let name = short("queue", queue)?;
        let found = self
            .aside(async |channel| {
                let passive =
                    QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
                channel
                    .queue_declare(name, passive, FieldTable::default())
                    .await
                    .map_err(|error| failure::of_operation(&error))
            })
            .await;
        match found {
            Ok(queue) => Ok(Some(QueueInfo {
                messages: queue.message_count().into(),
                consumers: queue.consumer_count().into(),
            })),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn exchange_exists(&self, exchange: &str) -> Result<bool> {
        let name = short("exchange", exchange)?;
        let found = self
            .aside(async |channel| {
                let passive =
                    ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
                // A passive declaration compares nothing, not even the kind.
                let kind = ExchangeKind::Direct;
                channel
                    .exchange_declare(name, kind, passive, FieldTable::default())
                    .await
                    .map_err(|error| failure::of_operation(&error))
            })
            .await;
        match found {
            Ok(()) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, queue: &str) -> Result<()> {
        let name = short("queue", queue)?;
        self.aside(async |channel| {
            channel
                .queue_delete(name, QueueDeleteOptions::default())
                .await
                .map(drop)
                .map_err(|error| failure::of_operation(&error))
        })
        .await
    }
}

impl Link for RabbitMqLink {
    fn publish(&self, message: Outgoing) -> BoxFuture<'static, Result<()>> {
        if let Err(error) = message.check_frame(self.frame_max) {
            return std::future::ready(Err(error)).boxed();
        }
        let (publishing, exchanges) = (self.publishing.clone(), Arc::clone(&self.exchanges));
        let (connection, status) = (Arc::clone(&self.connection), self.status.clone());
        async move {
            unless_lost(&status, exchanges.ensure(&connection, &message.exchange)).await?;
            publishing.publish(message).await
        }
        .boxed()
    }

    fn subscribe(&self, request: Subscribe) -> BoxFuture<'_, Result<Subscription>> {
        let subscribing = async { consumer::subscribe(self.delivering().await?, request).await };
        self.answered(subscribing).boxed()
    }

    fn pull(&self, queue: &str) -> BoxFuture<'_, Result<Box<dyn Pull>>> {
        let queue = queue.to_owned();
        self.answered(async move { consumer::pull(self.delivering().await?, &queue) }).boxed()
    }

    fn declare(&self, topology: &Topology) -> BoxFuture<'_, Result<()>> {
        let topology = topology.clone();
        let declaring = async move {
            self.aside(async |channel| declare::topology(channel, &topology).await).await
        };
        // Whether the connection ended over this declaration is told by its own answer only.
        let answered = async move {
            let mut declaring = pin!(declaring);
            let reason = tokio::select! {
                biased;
                answer = &mut declaring => return answer,
                reason = lost(self.status.clone()) => reason,
            };
            let last_word = timeout(LAST_WORD_WITHIN, declaring).await;
            last_word.unwrap_or(Err(Error::Interrupted { reason }))
        };
        answered.boxed()
    }

    fn inspect(&self, queue: &str) -> BoxFuture<'_, Result<Option<QueueInfo>>> {
        let queue = queue.to_owned();
        self.answered(async move { self.inspect_queue(&queue).await }).boxed()
    }

    fn has_exchange(&self, name: &str) -> BoxFuture<'_, Result<bool>> {
        let name = name.to_owned();
        self.answered(async move { self.exchange_exists(&name).await }).boxed()
    }

    fn has_binding(&self, _: &Binding) -> BoxFuture<'_, Result<Option<bool>>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn delete_queue(&self, queue: &str) -> BoxFuture<'_, Result<()>> {
        let queue = queue.to_owned();
        self.answered(async move { self.delete(&queue).await }).boxed()
    }

    fn status(&self) -> watch::Receiver<LinkStatus> {
        self.status.clone()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            let goodbye = self.connection.close(200, "OK".into());
            if timeout(CLOSE_WITHIN, goodbye).await.is_err() {
                tracing::warn!("the broker did not answer the close; dropping the connection");
            }
            self.socket.handle().close();
        }
        .boxed()
    }
}

impl fmt::Debug for RabbitMqLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqLink")
            .field("status", &*self.status.borrow())
            .finish_non_exhaustive()
    }
}

/// Closes a channel; what went wrong with it by then no longer matters.
pub(super) async fn close_channel(channel: &Channel) {
    if channel.status().connected() {
        let _ = timeout(CLOSE_WITHIN, channel.close(200, "OK".into())).await;
    }
}

/// Waits for the answer to an operation, at most until the connection is lost.
///
/// lapin leaves some operations that meet the end of their connection without an answer.
pub(super) async fn unless_lost<T>(
    status: &watch::Receiver<LinkStatus>,
    operation: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        answer = operation => answer,
        reason = lost(status.clone()) => Err(Error::Interrupted { reason }),
    }
}

/// Returns when a connection is lost, with the reason.
pub(super) async fn lost(mut status: watch::Receiver<LinkStatus>) -> String {
    loop {
        if let LinkStatus::Lost(reason) = &*status.borrow_and_update() {
            return reason.clone();
        }
        if status.changed().await.is_err() {
            return "the connection was closed".into();
        }
    }
}

/// Follows the connection's events until it is lost, and closes its socket then.
fn watch_status(connection: &Arc<Connection>, socket: SocketHandle) -> watch::Receiver<LinkStatus> {
    let (status, receiver) = watch::channel(LinkStatus::Open);
    let mut events = Box::pin(connection.events_listener());
    let connection = Arc::downgrade(connection);
    tokio::spawn(async move {
        let mut look = tokio::time::interval(LOOK_EVERY);
        let reason = loop {
            let event = tokio::select! {
                event = events.next() => event,
                _ = look.tick() => {
                    // An event can be missed, for instance at the end of the runtime's I/O thread.
                    if is_connected(&connection) {
                        continue;
                    }
                    None
                }
            };
            match event {
                Some(Event::ConnectionBlocked(reason)) => {
                    status.send_replace(LinkStatus::Blocked(reason));
                }
                Some(Event::ConnectionUnblocked) => {
                    status.send_replace(LinkStatus::Open);
                }
                // lapin reports the error of a channel here too; the connection then goes on.
                Some(Event::Error(_)) if is_connected(&connection) => {}
                Some(Event::Error(error)) => break error.to_string(),
                Some(_) => {}
                None => break "the connection was closed".into(),
            }
        };
        status.send_replace(LinkStatus::Lost(reason));
        socket.close();
    });
    receiver
}

fn is_connected(connection: &Weak<Connection>) -> bool {
    connection.upgrade().is_some_and(|connection| connection.status().connected())
}

/// The exchanges that are known to exist on this connection.
///
/// A publish to a missing exchange closes its channel and takes every other publish in flight
/// with it. So an exchange is looked up, on a channel of its own, before the first publish to it;
/// one that is deleted later costs its neighbours one interruption, not one per attempt.
#[derive(Default)]
pub(super) struct KnownExchanges(Mutex<HashSet<String>>);

impl KnownExchanges {
    async fn ensure(&self, connection: &Connection, exchange: &str) -> Result<()> {
        // The default exchange always exists.
        if exchange.is_empty() || self.lock().contains(exchange) {
            return Ok(());
        }
        let name = short("exchange", exchange)?;
        let channel =
            connection.create_channel().await.map_err(|error| failure::of_operation(&error))?;
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let found = channel
            .exchange_declare(name, ExchangeKind::Direct, passive, FieldTable::default())
            .await;
        close_channel(&channel).await;
        found.map_err(|error| failure::of_operation(&error))?;
        self.lock().insert(exchange.to_owned());
        Ok(())
    }

    pub(super) fn forget(&self, exchange: &str) {
        self.lock().remove(exchange);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
