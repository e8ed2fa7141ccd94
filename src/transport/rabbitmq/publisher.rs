//! The publishing channels: a task owns each, and every publish and confirm on it.
//!
//! Publishes are pipelined: the task sends as fast as they come and settles them as the broker
//! answers. How an answer finds its publish is in [`super::confirms`].

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    pin::pin,
    sync::Arc,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use lapin::{
    Channel, Confirmation, Connection,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::{
    confirms::{Confirms, Resolved, Returned, Verdict},
    convert::{short, to_amqp},
    failure,
    link::{KnownExchanges, lost, unless_lost},
};
use crate::{
    error::{Error, Result},
    transport::{LinkStatus, Outgoing},
};

/// How many waiting publishes are sent before confirms are looked at again.
const SEND_AT_ONCE: usize = 128;

/// How many channels publish. The broker works on channels in parallel, and on one in turn.
const CHANNELS: usize = 4;

/// The callers' end.
#[derive(Clone)]
pub(super) struct Publishing {
    /// A channel each. What goes to one address goes by one channel, so it stays in order.
    lanes: [mpsc::UnboundedSender<Command>; CHANNELS],
    window: Arc<Semaphore>,
}

/// A publish on its way to the task.
struct Command {
    message: Outgoing,
    ticket: Ticket,
}

/// What a publish in flight owes to its caller.
#[derive(Debug)]
struct Ticket {
    exchange: String,
    routing_key: String,
    body_size: usize,
    answer: oneshot::Sender<Result<()>>,
    /// A place in the window of unconfirmed publishes, given back with the ticket.
    _place: OwnedSemaphorePermit,
}

impl Publishing {
    pub(super) fn start(
        connection: &Arc<Connection>,
        exchanges: &Arc<KnownExchanges>,
        status: &watch::Receiver<LinkStatus>,
        window: usize,
    ) -> Self {
        let lanes = std::array::from_fn(|_| {
            let (commands, received) = mpsc::unbounded_channel();
            let (connection, exchanges) = (Arc::clone(connection), Arc::clone(exchanges));
            tokio::spawn(Task::new(connection, exchanges, status.clone()).run(received));
            commands
        });
        Self { lanes, window: Arc::new(Semaphore::new(window)) }
    }

    /// Publishes and waits for the answer.
    ///
    /// Dropped while it waits for a place, nothing is sent; dropped later, the message may or may
    /// not go out, and its place is given back when the broker has answered.
    pub(super) async fn publish(self, message: Outgoing) -> Result<()> {
        let gone = || Error::Interrupted { reason: "the connection was closed".into() };
        let place = self.window.acquire_owned().await.map_err(|_| gone())?;
        let (answer, mut answered) = oneshot::channel();
        let ticket = Ticket {
            exchange: message.exchange.clone(),
            routing_key: message.routing_key.clone(),
            body_size: message.body.len(),
            answer,
            _place: place,
        };
        let lane = &self.lanes[lane_of(&message)];
        lane.send(Command { message, ticket }).map_err(|_| gone())?;
        tokio::select! {
            biased;
            answer = &mut answered => answer.map_err(|_| gone())?,
            // A command that is sent while the task ends can be left in the channel for good.
            () = lane.closed() => answered.try_recv().unwrap_or_else(|_| Err(gone())),
        }
    }
}

/// The channel of an address.
fn lane_of(message: &Outgoing) -> usize {
    let mut hasher = DefaultHasher::new();
    (&message.exchange, &message.routing_key).hash(&mut hasher);
    // The remainder is below the number of channels.
    usize::try_from(hasher.finish() % CHANNELS as u64).unwrap_or(0)
}

impl Ticket {
    fn settle(self, verdict: Verdict) {
        let result = match verdict {
            Verdict::Acked => Ok(()),
            Verdict::Nacked => {
                Err(Error::Nacked { exchange: self.exchange, routing_key: self.routing_key })
            }
            Verdict::Returned(reason) => Err(Error::Unroutable {
                exchange: self.exchange,
                routing_key: self.routing_key,
                reason,
            }),
        };
        // The caller may have gone away; the answer is then of no interest.
        let _ = self.answer.send(result);
    }

    fn fail(self, error: Error) {
        let _ = self.answer.send(Err(error));
    }

    /// Whether the broker's text blames the exchange that this publish went to, or its size: a
    /// body over the broker's `max_message_size`, which can be below ours, closes the channel.
    fn is_blamed_by(&self, text: &str) -> bool {
        text.contains(&format!("exchange '{}'", self.exchange))
            || text.contains(&format!("message size {} is larger than", self.body_size))
    }
}

type InFlight =
    FuturesUnordered<futures::future::BoxFuture<'static, (u64, lapin::Result<Confirmation>)>>;

struct Task {
    connection: Arc<Connection>,
    exchanges: Arc<KnownExchanges>,
    status: watch::Receiver<LinkStatus>,
    channel: Option<Channel>,
    confirms: Confirms<Ticket>,
    in_flight: InFlight,
    /// Publishes whose message id is in flight already; they go out when it is settled.
    deferred: VecDeque<Command>,
}

impl Task {
    fn new(
        connection: Arc<Connection>,
        exchanges: Arc<KnownExchanges>,
        status: watch::Receiver<LinkStatus>,
    ) -> Self {
        Self {
            connection,
            exchanges,
            status,
            channel: None,
            confirms: Confirms::new(),
            in_flight: InFlight::new(),
            deferred: VecDeque::new(),
        }
    }

    /// Runs until every caller's end is gone and everything in flight is settled, or until the
    /// connection is lost.
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut open = true;
        let mut lost = pin!(lost(self.status.clone()));
        while open || !self.in_flight.is_empty() {
            tokio::select! {
                biased;
                Some(first) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    self.collect(first).await;
                }
                // What has no answer by now may never get one, not even an error.
                reason = &mut lost => return self.give_up(&reason),
                command = commands.recv(), if open => {
                    let Some(command) = command else { open = false; continue };
                    self.send(command).await;
                    for _ in 1..SEND_AT_ONCE {
                        let Ok(command) = commands.try_recv() else { break };
                        self.send(command).await;
                    }
                }
            }
        }
    }

    async fn send(&mut self, command: Command) {
        if command.ticket.answer.is_closed() {
            return;
        }
        let message_id = command.message.properties.message_id.clone().unwrap_or_default();
        if self.confirms.contains(&message_id) {
            self.deferred.push_back(command);
            return;
        }
        let Command { message, ticket } = command;
        match self.prepare(&message).await {
            Ok(publish) => {
                let number = self.confirms.sent(&message_id, ticket);
                self.in_flight.push(publish.map(move |answer| (number, answer)).boxed());
            }
            Err(error) => ticket.fail(error),
        }
    }

    /// The future that sends the message and resolves with the broker's answer.
    async fn prepare(
        &mut self,
        message: &Outgoing,
    ) -> Result<impl Future<Output = lapin::Result<Confirmation>> + Send + 'static> {
        let exchange = short("exchange", &message.exchange)?;
        let routing_key = short("routing_key", &message.routing_key)?;
        let properties = to_amqp(&message.properties)?;
        let options = BasicPublishOptions { mandatory: message.mandatory, immediate: false };
        let channel = self.open_channel().await?;
        let body = message.body.clone();
        Ok(async move {
            channel.basic_publish(exchange, routing_key, options, &body, properties).await?.await
        })
    }

    async fn open_channel(&mut self) -> Result<Channel> {
        if let Some(channel) = self.channel.as_ref().filter(|channel| channel.status().connected())
        {
            return Ok(channel.clone());
        }
        let opening = async {
            let channel = self.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        let channel = unless_lost(&self.status, async {
            opening.await.map_err(|error: lapin::Error| failure::interrupted(&error))
        })
        .await?;
        self.channel = Some(channel.clone());
        Ok(channel)
    }

    /// Takes everything that has resolved by now and settles what can be settled.
    async fn collect(&mut self, first: (u64, lapin::Result<Confirmation>)) {
        let mut next = Some(first);
        while let Some((number, answer)) = next {
            match answer {
                Ok(confirmation) => self.confirms.resolved(number, resolved(confirmation)),
                Err(error) => return self.break_off(&error).await,
            }
            next = self.in_flight.next().now_or_never().flatten();
        }
        for (ticket, verdict) in self.confirms.decide() {
            ticket.settle(verdict);
        }
        self.send_deferred().await;
    }

    async fn send_deferred(&mut self) {
        // A command that has to wait again goes to the end, so each is looked at once.
        for _ in 0..self.deferred.len() {
            if let Some(command) = self.deferred.pop_front() {
                self.send(command).await;
            }
        }
    }

    /// Ends everything in flight on a channel that is gone, each with what is known about it.
    async fn break_off(&mut self, error: &lapin::Error) {
        tracing::warn!(%error, in_flight = self.confirms.len(), "the publishing channel was lost");
        self.channel = None;
        // Dropped, not awaited: a confirm of a dead channel need not ever resolve.
        self.in_flight = InFlight::new();
        let confirms = std::mem::replace(&mut self.confirms, Confirms::new());
        let alone = confirms.len() == 1;
        let refusal = failure::reply(error).filter(|_| failure::is_of_the_channel(error));
        for ticket in confirms.into_tickets() {
            match refusal {
                Some((code, text)) if alone || ticket.is_blamed_by(text) => {
                    self.exchanges.forget(&ticket.exchange);
                    ticket.fail(failure::from_reply(code, text));
                }
                _ => ticket.fail(failure::interrupted(error)),
            }
        }
        self.send_deferred().await;
    }

    /// Ends everything that waits on a connection that is gone.
    fn give_up(self, reason: &str) {
        let in_flight = self.confirms.into_tickets();
        let deferred = self.deferred.into_iter().map(|command| command.ticket);
        for ticket in in_flight.chain(deferred) {
            ticket.fail(Error::Interrupted { reason: reason.to_owned() });
        }
    }
}

fn resolved(confirmation: Confirmation) -> Resolved {
    let acked = confirmation.is_ack();
    let carried = confirmation.take_message().map(|returned| Returned {
        reason: format!("{} {}", returned.reply_code, returned.reply_text),
        message_id: returned
            .properties
            .message_id()
            .as_ref()
            .map(|id| id.as_str().to_owned())
            .unwrap_or_default(),
    });
    Resolved { acked, carried }
}
