//! The caller's side of channels that deliver.

use std::sync::{Arc, Weak};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};

use super::{
    broker::{Broker, ChannelId},
    channel::Deliveries,
    reply,
};
use crate::{
    error::Result,
    transport::{Delivery, Pull, Subscription, SubscriptionControl},
};

/// Makes the caller's side of a consumer.
pub(super) fn new(
    broker: Weak<Broker>,
    channel: ChannelId,
    mut deliveries: Deliveries,
) -> Subscription {
    Subscription {
        deliveries: stream::poll_fn(move |context| deliveries.poll_recv(context)).boxed(),
        control: Arc::new(MemoryControl(OwnChannel { broker, channel })),
    }
}

/// A channel that closes when its owner is dropped. It does not keep the broker alive.
struct OwnChannel {
    broker: Weak<Broker>,
    channel: ChannelId,
}

impl OwnChannel {
    fn close(&self) {
        if let Some(broker) = self.broker.upgrade() {
            broker.with(|state| {
                state.close_channels(&[self.channel], &reply::channel_closed);
            });
        }
    }
}

impl Drop for OwnChannel {
    fn drop(&mut self) {
        self.close();
    }
}

/// Stops a consumer.
struct MemoryControl(OwnChannel);

impl SubscriptionControl for MemoryControl {
    fn is_open(&self) -> bool {
        let broker = self.0.broker.upgrade();
        broker.is_some_and(|broker| broker.with(|state| state.is_open(self.0.channel)))
    }

    fn cancel(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            let broker = self.0.broker.upgrade().ok_or_else(reply::channel_closed)?;
            broker.with(|state| state.cancel(self.0.channel))
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move { self.0.close() }.boxed()
    }

    #[cfg(all(test, feature = "rabbitmq"))]
    fn barrier(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// Takes messages one by one.
pub(super) struct MemoryPull {
    own: OwnChannel,
    queue: String,
}

impl MemoryPull {
    pub(super) fn new(broker: Weak<Broker>, channel: ChannelId, queue: String) -> Self {
        Self { own: OwnChannel { broker, channel }, queue }
    }
}

impl Pull for MemoryPull {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Delivery>>> {
        async move {
            tokio::task::consume_budget().await;
            let broker = self.own.broker.upgrade().ok_or_else(reply::channel_closed)?;
            broker.with(|state| state.take(self.own.channel, &self.queue))
        }
        .boxed()
    }

    /// Gives back what it has before it closes, which a quorum queue takes differently.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        async move {
            if let Some(broker) = self.own.broker.upgrade() {
                broker.with(|state| state.requeue_all(self.own.channel));
            }
            self.own.close();
        }
        .boxed()
    }

    #[cfg(all(test, feature = "rabbitmq"))]
    fn barrier(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}
