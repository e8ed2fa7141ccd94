//! Declaring and deleting ("Queues": property equivalence; "Exchanges").

use super::{
    broker::{LinkId, QueueId, State},
    exchange::{ALTERNATE, Exchange},
    header_match,
    queue::{Declared, Queue},
    reply,
    settings::{self, Settings},
    stored::type_name,
};
use crate::{
    error::{Error, Result},
    message::HeaderValue,
    topology::{self, Binding, Destination, ExchangeKind, QueueKind, Topology},
    transport::QueueInfo,
};

impl State {
    /// Declares a topology in the order exchanges, queues, bindings; stops at the first refusal.
    pub(super) fn declare(&mut self, link: LinkId, topology: &Topology) -> Result<()> {
        self.check_open(link)?;
        topology.exchanges.iter().try_for_each(|exchange| self.declare_exchange(exchange))?;
        topology.queues.iter().try_for_each(|queue| self.declare_queue(link, queue))?;
        topology.bindings.iter().try_for_each(|binding| self.bind(link, binding))
    }

    fn declare_exchange(&mut self, wanted: &topology::Exchange) -> Result<()> {
        let name = wanted.name.as_str();
        if name.is_empty() {
            return Err(reply::access_refused("operation not permitted on the default exchange"));
        }
        if let Some((argument, _)) = wanted.arguments.iter().find(|(name, _)| *name != ALTERNATE) {
            return Err(reply::unsupported(format!("exchange argument `{argument}`")));
        }
        let alternate = wanted.arguments.get(ALTERNATE);
        let Some(found) = self.exchanges.get(name) else {
            check_reserved("exchange", name)?;
            if let Some(other) = alternate.filter(|value| value.as_str().is_none()) {
                return Err(reply::precondition_failed(format_args!(
                    "invalid type '{}' for arg '{ALTERNATE}' in exchange '{name}' in vhost '/'",
                    type_name(other)
                )));
            }
            self.exchanges.insert(name.to_owned(), Exchange::new(wanted));
            return Ok(());
        };
        let object = Object { kind: "exchange", name };
        object.same("type", wanted.kind.as_str(), found.kind.as_str())?;
        object.same("durable", wanted.durable, found.durable)?;
        object.same("auto_delete", wanted.auto_delete, found.auto_delete)?;
        object.same_argument(ALTERNATE, alternate, found.arguments.get(ALTERNATE))
    }

    fn declare_queue(&mut self, link: LinkId, wanted: &topology::Queue) -> Result<()> {
        let settings = Settings::read(wanted);
        if let Err(unsupported @ Error::Unsupported { .. }) = settings {
            return Err(unsupported);
        }
        let declared = Declared {
            // An exclusive queue goes with its connection: RabbitMQ never calls it durable.
            durable: wanted.durable && !wanted.exclusive,
            auto_delete: wanted.auto_delete,
            owner: wanted.exclusive.then_some(link),
            arguments: wanted.arguments.clone(),
        };
        let now = self.now;
        if let Some(found) = self.queues.get_mut(&wanted.name) {
            check_equivalent(&wanted.name, found.settings.kind, &declared, &found.declared)?;
            if !found.is_quorum() {
                found.used_at = now;
            }
            self.schedule(&wanted.name);
            return Ok(());
        }
        check_reserved("queue", &wanted.name)?;
        let id = QueueId(self.next_id());
        let queue = Queue::new(id, declared, settings?, now);
        self.queues.insert(wanted.name.clone(), queue);
        self.schedule(&wanted.name);
        Ok(())
    }

    fn bind(&mut self, link: LinkId, binding: &Binding) -> Result<()> {
        let (to, exchange) = (&binding.to, binding.exchange.as_str());
        if exchange.is_empty() || *to == Destination::Exchange(String::new()) {
            return Err(reply::access_refused("operation not permitted on the default exchange"));
        }
        let from = self.exchanges.get(exchange).ok_or_else(|| reply::no_exchange(exchange))?;
        match to {
            Destination::Queue(name) if !self.queues.contains_key(name) => {
                return Err(reply::no_queue(name));
            }
            Destination::Exchange(name) if !self.exchanges.contains_key(name) => {
                return Err(reply::no_exchange(name));
            }
            _ => {}
        }
        if from.kind == ExchangeKind::Headers {
            header_match::check(&binding.arguments)?;
        }
        if let Destination::Queue(name) = to {
            self.check_owner(link, name)?;
        }
        self.add_binding(binding);
        Ok(())
    }

    /// Looks a queue up, which counts as using a classic queue, as on RabbitMQ.
    pub(super) fn inspect(&mut self, link: LinkId, name: &str) -> Result<Option<QueueInfo>> {
        self.check_open(link)?;
        self.check_owner(link, name)?;
        let now = self.now;
        let Some(queue) = self.queues.get_mut(name) else { return Ok(None) };
        if !queue.is_quorum() {
            queue.used_at = now;
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let messages = count(queue.ready.len());
        self.schedule(name);
        let consumers = self.queues.get(name).map_or(0, |queue| self.count_consumers(queue));
        Ok(Some(QueueInfo { messages, consumers: count(consumers) }))
    }

    pub(super) fn delete_queue(&mut self, link: LinkId, name: &str) -> Result<()> {
        self.check_open(link)?;
        self.check_owner(link, name)?;
        self.remove_queue(name);
        Ok(())
    }

    /// Removes a queue with its messages, which are not dead-lettered, its bindings and consumers.
    pub(super) fn remove_queue(&mut self, name: &str) {
        let Some(queue) = self.queues.remove(name) else { return };
        if let Some(at) = queue.scheduled {
            self.timetable.remove(&(at, name.to_owned()));
        }
        self.unbind(&Destination::Queue(name.to_owned()));
        self.end_consumers(&queue.consumers, || reply::queue_deleted(name));
    }

    /// Refuses another connection's exclusive queue.
    pub(super) fn check_owner(&self, link: LinkId, name: &str) -> Result<()> {
        let owner = self.queues.get(name).and_then(|queue| queue.declared.owner);
        if owner.is_some_and(|owner| owner != link) {
            return Err(reply::locked(name));
        }
        Ok(())
    }
}

/// Refuses new names that belong to the broker.
fn check_reserved(object: &str, name: &str) -> Result<()> {
    if name.starts_with("amq.") {
        let what = format!("{object} name '{name}' contains reserved prefix 'amq.*'");
        return Err(reply::access_refused(what));
    }
    Ok(())
}

/// Compares a declaration with what exists, property by property in RabbitMQ's order.
fn check_equivalent(
    name: &str,
    kind: QueueKind,
    wanted: &Declared,
    found: &Declared,
) -> Result<()> {
    if wanted.owner != found.owner {
        return Err(reply::locked(name));
    }
    let object = Object { kind: "queue", name };
    object.same("durable", wanted.durable, found.durable)?;
    object.same("auto_delete", wanted.auto_delete, found.auto_delete)?;
    settings::arguments_of(kind).iter().try_for_each(|argument| {
        let pair = (wanted.arguments.get(argument), found.arguments.get(argument));
        object.same_argument(argument, pair.0, pair.1)
    })
}

/// Something declared, for the error that says how it differs.
struct Object<'a> {
    kind: &'static str,
    name: &'a str,
}

impl Object<'_> {
    fn same<T>(&self, property: &str, wanted: T, found: T) -> Result<()>
    where
        T: Copy + PartialEq + std::fmt::Display,
    {
        if wanted == found {
            return Ok(());
        }
        Err(self.mismatch(property, format!("'{wanted}'"), format!("'{found}'")))
    }

    /// Compares an argument: integers by value, whatever their width; absent and present differ,
    /// except that `classic` is what a queue without a type is.
    fn same_argument(
        &self,
        argument: &str,
        wanted: Option<&HeaderValue>,
        found: Option<&HeaderValue>,
    ) -> Result<()> {
        let (wanted, found) = match (wanted, found) {
            (Some(wanted), Some(found)) if is_equal(wanted, found) => return Ok(()),
            (Some(wanted), Some(found)) => (plain(wanted), plain(found)),
            (None, None) => return Ok(()),
            (Some(only), None) | (None, Some(only))
                if argument == "x-queue-type" && only.as_str() == Some("classic") =>
            {
                return Ok(());
            }
            (Some(wanted), None) => (typed(wanted), "none".to_owned()),
            (None, Some(found)) => ("none".to_owned(), typed(found)),
        };
        Err(self.mismatch(argument, wanted, found))
    }

    fn mismatch(&self, argument: &str, wanted: String, found: String) -> Error {
        Error::TopologyMismatch {
            object: self.kind.to_owned(),
            name: self.name.to_owned(),
            argument: argument.to_owned(),
            wanted,
            found,
        }
    }
}

fn is_equal(one: &HeaderValue, other: &HeaderValue) -> bool {
    match (one.as_i64(), other.as_i64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

fn plain(value: &HeaderValue) -> String {
    format!("'{}'", value.lenient_text().unwrap_or_default())
}

fn typed(value: &HeaderValue) -> String {
    format!("{} of type '{}'", plain(value), type_name(value))
}
