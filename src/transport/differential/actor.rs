//! Carries a script out on one broker, and says what can be seen.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, future::join_all};

use super::script::{Script, Step, Verdict};
use crate::{
    error::{Error, Result},
    message::{HeaderValue, Headers, Properties},
    transport::{Delivery, Link, Pull, Settle, Subscription},
};

/// A client of one broker.
pub(super) struct Actor {
    link: Arc<dyn Link>,
    takers: Vec<Taker>,
}

/// Something that took deliveries: a consumer, or a channel that pulled.
struct Taker {
    from: Source,
    /// What it was given, in order.
    seen: Vec<String>,
    /// What it has not settled.
    held: Vec<Box<dyn Settle>>,
}

enum Source {
    Consumer { subscription: Subscription, ended: bool },
    Pull(Box<dyn Pull>),
    Closed,
}

impl Actor {
    pub(super) fn on(link: Arc<dyn Link>) -> Self {
        Self { link, takers: Vec::new() }
    }

    /// Does one step, and says what the broker answered.
    pub(super) async fn act(&mut self, step: &Step) -> String {
        match step {
            Step::Declare(topology) => told(&self.link.declare(topology).await),
            Step::Publish(message) => told(&self.link.publish((**message).clone()).await),
            Step::Subscribe(request) => match self.link.subscribe((**request).clone()).await {
                Ok(subscription) => {
                    self.add(Source::Consumer { subscription, ended: false });
                    "Ok".to_owned()
                }
                Err(error) => told::<()>(&Err(error)),
            },
            Step::Pull(queue) => self.pull(queue).await,
            Step::Settle(number, verdict) => self.settle(*number, *verdict).await,
            Step::Cancel(number) => self.cancel(*number).await,
            Step::Close(number) => self.close_one(*number).await,
            Step::Delete(queue) => told(&self.link.delete_queue(queue).await),
        }
    }

    fn add(&mut self, from: Source) {
        self.takers.push(Taker { from, seen: Vec::new(), held: Vec::new() });
    }

    async fn pull(&mut self, queue: &str) -> String {
        let mut pull = self.link.pull(queue).await.unwrap();
        match pull.next().await {
            Ok(Some(delivery)) => {
                let shown = shown(&delivery);
                self.add(Source::Pull(pull));
                if let Some(taker) = self.takers.last_mut() {
                    taker.seen.push(shown.clone());
                    taker.held.push(delivery.settle);
                }
                shown
            }
            Ok(None) => {
                pull.close().await;
                "empty".to_owned()
            }
            Err(error) => told::<()>(&Err(error)),
        }
    }

    async fn settle(&mut self, number: usize, verdict: Verdict) -> String {
        let all: usize = self.takers.iter().map(|taker| taker.held.len()).sum();
        let Some(mut number) = number.checked_rem(all) else { return "nothing".to_owned() };
        for taker in &mut self.takers {
            if number < taker.held.len() {
                let settle = taker.held.remove(number);
                let answer = match verdict {
                    Verdict::Ack => settle.ack().await,
                    Verdict::Requeue => settle.nack(true).await,
                    Verdict::Reject => settle.nack(false).await,
                };
                taker.barrier().await;
                return told(&answer);
            }
            number -= taker.held.len();
        }
        unreachable!("there are {all} in all")
    }

    async fn cancel(&mut self, number: usize) -> String {
        match self.of(number, |from| matches!(from, Source::Consumer { ended: false, .. })) {
            Some(Taker { from: Source::Consumer { subscription, ended }, .. }) => {
                *ended = true;
                told(&subscription.control.cancel().await)
            }
            _ => "nothing".to_owned(),
        }
    }

    async fn close_one(&mut self, number: usize) -> String {
        let Some(taker) = self.of(number, |from| !matches!(from, Source::Closed)) else {
            return "nothing".to_owned();
        };
        taker.held.clear();
        match std::mem::replace(&mut taker.from, Source::Closed) {
            Source::Consumer { subscription, .. } => subscription.control.close().await,
            Source::Pull(pull) => pull.close().await,
            Source::Closed => {}
        }
        "closed".to_owned()
    }

    /// The `number`th of the takers of a kind; modulo how many there are.
    fn of(&mut self, number: usize, is_it: impl Fn(&Source) -> bool) -> Option<&mut Taker> {
        let mut takers: Vec<_> =
            self.takers.iter_mut().filter(|taker| is_it(&taker.from)).collect();
        let number = number.checked_rem(takers.len())?;
        Some(takers.swap_remove(number))
    }

    /// Everything that can be seen now, a line for each taker and queue.
    pub(super) async fn observe(&mut self, script: &Script) -> Vec<String> {
        let mut lines = Vec::new();
        let names = script.queue_names();
        let looking = names.iter().map(|queue| self.link.inspect(queue));
        for (queue, found) in names.iter().zip(join_all(looking).await) {
            let found = found.map_or_else(|error| format!("{error:?}"), |info| format!("{info:?}"));
            lines.push(format!("{queue}: {found}"));
        }
        for (number, taker) in self.takers.iter_mut().enumerate() {
            taker.take_what_came();
            lines.push(format!("taker {number}: {}", taker.seen.join(" | ")));
        }
        lines
    }

    pub(super) async fn close(self) {
        self.link.close().await;
    }
}

impl Taker {
    fn take_what_came(&mut self) {
        let Source::Consumer { subscription, .. } = &mut self.from else { return };
        while let Some(Some(next)) = subscription.deliveries.next().now_or_never() {
            match next {
                Ok(delivery) => {
                    self.seen.push(shown(&delivery));
                    self.held.push(delivery.settle);
                }
                // The words are the client's.
                Err(Error::NotFound { .. }) => self.seen.push("end: not found".to_owned()),
                Err(error) => self.seen.push(format!("end: {error:?}")),
            }
        }
    }

    /// Returns when what was settled has been read by the broker.
    async fn barrier(&self) {
        match &self.from {
            Source::Consumer { subscription, .. } => subscription.control.barrier().await,
            Source::Pull(pull) => pull.barrier().await,
            Source::Closed => {}
        }
    }
}

fn told<T>(result: &Result<T>) -> String {
    match result {
        Ok(_) => "Ok".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

/// A delivery, without what differs from run to run.
fn shown(delivery: &Delivery) -> String {
    let Properties { headers, expiration, priority, persistent, message_id, .. } =
        &delivery.properties;
    let id = message_id.as_deref().unwrap_or_default();
    let from = format!("{id:?} from `{}` by `{}`", delivery.exchange, delivery.routing_key);
    let flags = [(delivery.redelivered, "again"), (!persistent, "transient")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned());
    let expiration = expiration.iter().map(|text| format!("expiration {text}"));
    let priority = priority.iter().map(|priority| format!("priority {priority}"));
    let headers = headers.iter().map(|(name, value)| format!("{name}={}", timeless(value)));
    let parts = flags.chain(expiration).chain(priority).chain(headers);
    std::iter::once(from).chain(parts).collect::<Vec<_>>().join(" ")
}

/// A header without the times of deaths.
fn timeless(value: &HeaderValue) -> String {
    match value {
        HeaderValue::List(values) => {
            format!("[{}]", values.iter().map(timeless).collect::<Vec<_>>().join(", "))
        }
        HeaderValue::Table(table) => {
            let others: Headers = table
                .iter()
                .filter(|(name, _)| *name != "time")
                .map(|(name, value)| (name, value.clone()))
                .collect();
            format!("{others:?}")
        }
        value => format!("{value:?}"),
    }
}
