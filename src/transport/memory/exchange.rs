//! Exchanges and their bindings.

use std::collections::{BTreeMap, BTreeSet};

use super::topic;
use crate::topology::ExchangeKind;

/// The exchanges that every virtual host has ("Default Exchange" and "Exchanges", AMQP concepts).
const PREDECLARED: [(&str, ExchangeKind); 3] = [
    ("amq.direct", ExchangeKind::Direct),
    ("amq.fanout", ExchangeKind::Fanout),
    ("amq.topic", ExchangeKind::Topic),
];

/// An exchange that exists.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) kind: ExchangeKind,
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    /// The queues of each binding key. Two equal bindings are one.
    bindings: BTreeMap<String, BTreeSet<String>>,
}

impl Exchange {
    pub(super) fn new(kind: ExchangeKind, durable: bool, auto_delete: bool) -> Self {
        Self { kind, durable, auto_delete, bindings: BTreeMap::new() }
    }

    /// Returns the exchanges a fresh broker starts with.
    pub(super) fn predeclared() -> BTreeMap<String, Self> {
        PREDECLARED
            .into_iter()
            .map(|(name, kind)| (name.to_owned(), Self::new(kind, true, false)))
            .collect()
    }

    pub(super) fn bind(&mut self, queue: &str, key: &str) {
        self.bindings.entry(key.to_owned()).or_default().insert(queue.to_owned());
    }

    /// Removes a queue's bindings. Returns whether the exchange goes with them: an auto-deleted
    /// exchange does when its last binding is removed, but not before it had one.
    pub(super) fn unbind_queue(&mut self, queue: &str) -> bool {
        let had_bindings = !self.bindings.is_empty();
        self.bindings.retain(|_, queues| {
            queues.remove(queue);
            !queues.is_empty()
        });
        self.auto_delete && had_bindings && self.bindings.is_empty()
    }

    /// Adds the queues that a routing key leads to. A queue matched twice gets one copy.
    pub(super) fn route<'a>(&'a self, key: &str, found: &mut BTreeSet<&'a str>) {
        match self.kind {
            ExchangeKind::Direct => {
                found.extend(self.bindings.get(key).into_iter().flatten().map(String::as_str));
            }
            ExchangeKind::Topic => found.extend(self.bound(|pattern| topic::matches(pattern, key))),
            ExchangeKind::Fanout => found.extend(self.bound(|_| true)),
            // Refused when declared.
            ExchangeKind::Headers => {}
        }
    }

    fn bound(&self, takes: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
        self.bindings
            .iter()
            .filter(move |(key, _)| takes(key))
            .flat_map(|(_, queues)| queues.iter().map(String::as_str))
    }
}
