//! One connection to the broker.

use std::{fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    sync::{oneshot, watch},
    task::AbortHandle,
};

use super::{
    broker::{Broker, LinkId, State},
    publish::Pending,
    reply,
    subscription::{self, MemoryPull},
    timer,
};
use crate::{
    error::{Error, Result},
    topology::{Binding, Topology},
    transport::{Link, LinkStatus, Outgoing, Pull, QueueInfo, Subscribe, Subscription},
};

/// The broker's side of a connection.
#[derive(Debug)]
pub(super) struct OpenLink {
    pub(super) status: watch::Sender<LinkStatus>,
    pub(super) pending: Pending,
    timer: AbortHandle,
}

impl State {
    /// Lets a connection in, unless the broker is told to refuse.
    fn open_link(
        &mut self,
        timer: AbortHandle,
    ) -> Result<(LinkId, watch::Receiver<LinkStatus>), AbortHandle> {
        if self.connections_refused {
            return Err(timer);
        }
        let id = LinkId(self.next_id());
        let status = match &self.alarm {
            Some(reason) => LinkStatus::Blocked(reason.clone()),
            None => LinkStatus::Open,
        };
        let (status, watching) = watch::channel(status);
        self.links.insert(id, OpenLink { status, pending: Pending::default(), timer });
        Ok((id, watching))
    }

    pub(super) fn check_open(&self, link: LinkId) -> Result<()> {
        if self.links.contains_key(&link) {
            return Ok(());
        }
        Err(reply::interrupted("the connection is closed"))
    }

    /// Ends a connection, wanted or not.
    ///
    /// Its channels close, its exclusive queues go, and whoever waits for an answer learns that
    /// none will come.
    pub(super) fn lose_link(&mut self, id: LinkId, reason: &str) {
        let Some(link) = self.links.remove(&id) else { return };
        link.timer.abort();
        self.close_channels(&self.channels_of(id), &|| reply::interrupted(reason));
        let own = self.queues.iter().filter(|(_, queue)| queue.declared.owner == Some(id));
        for name in own.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.remove_queue(&name);
        }
        self.queues.values_mut().for_each(|queue| queue.forget_publisher(id));
        link.pending.interrupt(reason);
        link.status.send_replace(LinkStatus::Lost(reason.to_owned()));
    }
}

/// A connection. Dropping it closes it.
pub(super) struct MemoryLink {
    broker: Arc<Broker>,
    id: LinkId,
    status: watch::Receiver<LinkStatus>,
}

impl MemoryLink {
    /// Dials the broker. Fails outside of a tokio runtime, which the timer needs.
    pub(super) fn dial(broker: &Arc<Broker>, endpoint: String) -> Result<Self> {
        let timer = match timer::start(broker) {
            Ok(timer) => timer,
            Err(source) => return Err(Error::Connect { endpoint, source: source.into() }),
        };
        match broker.with(|state| state.open_link(timer)) {
            Ok((id, status)) => Ok(Self { broker: Arc::clone(broker), id, status }),
            Err(timer) => {
                timer.abort();
                Err(Error::Connect { endpoint, source: "connection refused".into() })
            }
        }
    }

    /// Runs an operation, and tells an interruption with the reason why the link was lost.
    ///
    /// Spends the task's budget first: an operation never waits, and a loop of them would
    /// otherwise keep everything else from running.
    async fn run<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        tokio::task::consume_budget().await;
        self.broker.with(act).map_err(|error| explain(error, &self.status))
    }
}

/// Puts the reason of the loss into an interruption.
fn explain(error: Error, status: &watch::Receiver<LinkStatus>) -> Error {
    match (error, &*status.borrow()) {
        (Error::Interrupted { .. }, LinkStatus::Lost(reason)) => reply::interrupted(reason),
        (error, _) => error,
    }
}

/// What one frame holds at RabbitMQ's default frame size.
const FRAME_MAX: usize = 128 * 1024 - 8;

impl Link for MemoryLink {
    fn publish(&self, message: Outgoing) -> BoxFuture<'static, Result<()>> {
        let (broker, id, status) = (Arc::clone(&self.broker), self.id, self.status.clone());
        async move {
            message.check_frame(FRAME_MAX)?;
            let (confirm, confirmed) = oneshot::channel();
            broker.with(|state| state.publish(id, message, confirm));
            // The broker must not live on because somebody waits for its answer.
            drop(broker);
            let answer = confirmed.await;
            let answer = answer.unwrap_or_else(|_| Err(reply::interrupted("the broker is gone")));
            answer.map_err(|error| explain(error, &status))
        }
        .boxed()
    }

    fn subscribe(&self, request: Subscribe) -> BoxFuture<'_, Result<Subscription>> {
        async move {
            let (channel, deliveries) =
                self.run(|state| state.subscribe(self.id, &request)).await?;
            Ok(subscription::new(Arc::downgrade(&self.broker), channel, deliveries))
        }
        .boxed()
    }

    fn pull(&self, queue: &str) -> BoxFuture<'_, Result<Box<dyn Pull>>> {
        let queue = queue.to_owned();
        async move {
            let channel = self.run(|state| state.open_channel(self.id)).await?;
            let pull = MemoryPull::new(Arc::downgrade(&self.broker), channel, queue);
            Ok(Box::new(pull) as Box<dyn Pull>)
        }
        .boxed()
    }

    fn declare(&self, topology: &Topology) -> BoxFuture<'_, Result<()>> {
        let topology = topology.clone();
        async move { self.run(|state| state.declare(self.id, &topology)).await }.boxed()
    }

    fn inspect(&self, queue: &str) -> BoxFuture<'_, Result<Option<QueueInfo>>> {
        let queue = queue.to_owned();
        async move { self.run(|state| state.inspect(self.id, &queue)).await }.boxed()
    }

    fn has_exchange(&self, name: &str) -> BoxFuture<'_, Result<bool>> {
        let name = name.to_owned();
        async move { self.run(|state| state.has_exchange(self.id, &name)).await }.boxed()
    }

    fn has_binding(&self, binding: &Binding) -> BoxFuture<'_, Result<Option<bool>>> {
        let binding = binding.clone();
        async move { self.run(|state| state.has_binding(self.id, &binding).map(Some)).await }
            .boxed()
    }

    fn delete_queue(&self, queue: &str) -> BoxFuture<'_, Result<()>> {
        let queue = queue.to_owned();
        async move { self.run(|state| state.delete_queue(self.id, &queue)).await }.boxed()
    }

    fn status(&self) -> watch::Receiver<LinkStatus> {
        self.status.clone()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move { self.broker.with(|state| state.lose_link(self.id, CLOSED)) }.boxed()
    }
}

/// Why a link that its owner closed is lost.
const CLOSED: &str = "closed by this client";

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.broker.with(|state| state.lose_link(self.id, CLOSED));
    }
}

impl fmt::Debug for MemoryLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLink").field("id", &self.id).finish_non_exhaustive()
    }
}
