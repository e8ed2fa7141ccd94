//! Consuming channels: each subscription and each pull has one of its own.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use lapin::{
    Channel,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions,
        BasicNackOptions, BasicQosOptions,
    },
    types::ShortString,
};
use tokio::sync::watch;

use super::{
    convert::{from_amqp, short, table},
    failure,
    link::{close_channel, unless_lost},
};
use crate::{
    error::{Error, Result},
    transport::{Delivery, LinkStatus, Pull, Settle, Subscribe, Subscription, SubscriptionControl},
};

/// A channel that delivers, and the state of its connection.
#[derive(Debug)]
pub(super) struct Delivering {
    pub(super) channel: Channel,
    pub(super) status: watch::Receiver<LinkStatus>,
}

#[cfg(test)]
impl Delivering {
    /// The broker reads a channel in order: what it answers, it answers after what came before.
    async fn barrier(&self) {
        let _ = self.channel.basic_qos(1, BasicQosOptions::default()).await;
    }
}

pub(super) async fn subscribe(on: Delivering, request: Subscribe) -> Result<Subscription> {
    let queue = short("queue", &request.queue)?;
    let tag = short("consumer tag", &request.tag)?;
    let arguments = table(&request.arguments)?;
    let options =
        BasicConsumeOptions { exclusive: request.exclusive, ..BasicConsumeOptions::default() };
    let on = Arc::new(on);
    let control = Arc::new(Control {
        on: Arc::clone(&on),
        tag: tag.clone(),
        cancelled: AtomicBool::new(false),
    });
    let failed = |error: lapin::Error| failure::of_operation(&error);
    let channel = &on.channel;
    channel.basic_qos(request.prefetch, BasicQosOptions::default()).await.map_err(failed)?;
    let consumer = channel.basic_consume(queue, tag, options, arguments).await.map_err(failed)?;

    let deliveries = consumer.map(move |next| match next {
        Ok(delivery) => Ok(received(&on, delivery)),
        Err(error) => Err(failure::of_operation(&error)),
    });
    // lapin ends the stream alike after our cancel and after the broker's: tell them apart.
    let end = {
        let control = Arc::clone(&control);
        stream::once(async move { control.ended_by_the_broker(&request.queue) })
            .filter_map(std::future::ready)
    };
    Ok(Subscription { deliveries: until_the_first_error(deliveries.chain(end)).boxed(), control })
}

/// Ends a stream after its first error.
fn until_the_first_error(
    deliveries: impl stream::Stream<Item = Result<Delivery>> + Send + 'static,
) -> impl stream::Stream<Item = Result<Delivery>> + Send + 'static {
    deliveries.scan(false, |failed, next| {
        let item = (!*failed).then(|| {
            *failed = next.is_err();
            next
        });
        std::future::ready(item)
    })
}

fn received(on: &Arc<Delivering>, delivery: lapin::message::Delivery) -> Delivery {
    Delivery {
        exchange: delivery.exchange.as_str().to_owned(),
        routing_key: delivery.routing_key.as_str().to_owned(),
        redelivered: delivery.redelivered,
        properties: from_amqp(&delivery.properties),
        body: delivery.data.into(),
        settle: Box::new(Tag { on: Arc::clone(on), tag: delivery.delivery_tag }),
    }
}

struct Control {
    on: Arc<Delivering>,
    tag: ShortString,
    cancelled: AtomicBool,
}

impl Control {
    fn ended_by_the_broker(&self, queue: &str) -> Option<Result<Delivery>> {
        (!self.cancelled.load(Ordering::Acquire)).then(|| {
            Err(Error::NotFound {
                reason: format!("the broker cancelled the consumer: queue `{queue}` is gone"),
            })
        })
    }
}

impl SubscriptionControl for Control {
    fn is_open(&self) -> bool {
        self.on.channel.status().connected()
    }

    fn cancel(&self) -> BoxFuture<'_, Result<()>> {
        self.cancelled.store(true, Ordering::Release);
        async move {
            self.on
                .channel
                .basic_cancel(self.tag.clone(), BasicCancelOptions::default())
                .await
                .map_err(|error| failure::of_operation(&error))
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.cancelled.store(true, Ordering::Release);
        close_channel(&self.on.channel).boxed()
    }

    #[cfg(test)]
    fn barrier(&self) -> BoxFuture<'_, ()> {
        self.on.barrier().boxed()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        close_in_background(&self.on.channel);
    }
}

/// The right to settle one delivery, on the channel that delivered it and on no other: a later
/// channel of the same number refuses it.
#[derive(Debug)]
struct Tag {
    on: Arc<Delivering>,
    tag: u64,
}

impl Tag {
    /// Waits until the settlement is written, at most until the connection is lost.
    async fn settled(&self, settling: impl Future<Output = lapin::Result<()>>) -> Result<()> {
        let settling = async { settling.await.map_err(|error| failure::interrupted(&error)) };
        unless_lost(&self.on.status, settling).await
    }
}

impl Settle for Tag {
    fn is_live(&self) -> bool {
        self.on.channel.status().connected()
    }

    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        async move {
            let ack = self.on.channel.basic_ack(self.tag, BasicAckOptions::default());
            self.settled(ack).await
        }
        .boxed()
    }

    fn nack(self: Box<Self>, requeue: bool) -> BoxFuture<'static, Result<()>> {
        async move {
            let options = BasicNackOptions { multiple: false, requeue };
            self.settled(self.on.channel.basic_nack(self.tag, options)).await
        }
        .boxed()
    }
}

pub(super) fn pull(on: Delivering, queue: &str) -> Result<Box<dyn Pull>> {
    Ok(Box::new(PullChannel { queue: short("queue", queue)?, on: Arc::new(on) }))
}

struct PullChannel {
    on: Arc<Delivering>,
    queue: ShortString,
}

impl Pull for PullChannel {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Delivery>>> {
        async move {
            let getting = async {
                let got =
                    self.on.channel.basic_get(self.queue.clone(), BasicGetOptions::default()).await;
                got.map_err(|error| failure::of_operation(&error))
            };
            let found = unless_lost(&self.on.status, getting).await?;
            Ok(found.map(|message| received(&self.on, message.delivery)))
        }
        .boxed()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        async move {
            // A closed channel gives back what it pulled only a moment after the broker's answer;
            // this gives it back before, and in one piece: tag 0 stands for every delivery.
            let all = BasicNackOptions { multiple: true, requeue: true };
            if self.on.channel.status().connected() {
                let giving_back = async {
                    let nack = self.on.channel.basic_nack(0, all).await;
                    nack.map_err(|error| failure::interrupted(&error))
                };
                let _ = unless_lost(&self.on.status, giving_back).await;
            }
            close_channel(&self.on.channel).await;
        }
        .boxed()
    }

    #[cfg(test)]
    fn barrier(&self) -> BoxFuture<'_, ()> {
        self.on.barrier().boxed()
    }
}

impl Drop for PullChannel {
    fn drop(&mut self) {
        close_in_background(&self.on.channel);
    }
}

/// Closes a channel from a destructor, which must not block.
fn close_in_background(channel: &Channel) {
    if !channel.status().connected() {
        return;
    }
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let channel = channel.clone();
        runtime.spawn(async move { close_channel(&channel).await });
    }
}
