//! Exchanges and their bindings.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    broker::{LinkId, State},
    header_match,
    stored::Message,
    topic,
};
use crate::{
    error::Result,
    message::{HeaderValue, Headers},
    topology::{self, Destination, ExchangeKind},
};

/// The exchanges that every virtual host has ("Default Exchange" and "Exchanges", AMQP concepts).
const PREDECLARED: [(&str, ExchangeKind); 5] = [
    ("amq.direct", ExchangeKind::Direct),
    ("amq.fanout", ExchangeKind::Fanout),
    ("amq.headers", ExchangeKind::Headers),
    ("amq.match", ExchangeKind::Headers),
    ("amq.topic", ExchangeKind::Topic),
];

/// The one argument of an exchange that is modelled.
pub(super) const ALTERNATE: &str = "alternate-exchange";

/// An exchange that exists.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) kind: ExchangeKind,
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    pub(super) arguments: Headers,
    /// Where each binding key leads, and with which arguments. Two equal bindings are one.
    bindings: BTreeMap<String, BTreeMap<Destination, Vec<Headers>>>,
}

impl Exchange {
    pub(super) fn new(wanted: &topology::Exchange) -> Self {
        Self {
            kind: wanted.kind,
            durable: wanted.durable,
            auto_delete: wanted.auto_delete,
            arguments: wanted.arguments.clone(),
            bindings: BTreeMap::new(),
        }
    }

    /// Returns the exchanges a fresh broker starts with.
    pub(super) fn predeclared() -> BTreeMap<String, Self> {
        PREDECLARED
            .into_iter()
            .map(|(name, kind)| (name.to_owned(), Self::new(&topology::Exchange::new(name, kind))))
            .collect()
    }

    /// Where a message goes that no binding takes.
    fn alternate(&self) -> Option<&str> {
        self.arguments.get(ALTERNATE).and_then(HeaderValue::as_str)
    }

    fn bind(&mut self, key: &str, to: &Destination, arguments: &Headers) {
        let bound = self.bindings.entry(key.to_owned()).or_default().entry(to.clone()).or_default();
        if !bound.contains(arguments) {
            bound.push(arguments.clone());
        }
    }

    /// Whether a binding exists.
    fn has(&self, key: &str, to: &Destination, arguments: &Headers) -> bool {
        let bound = self.bindings.get(key).and_then(|bound| bound.get(to));
        bound.is_some_and(|variants| variants.contains(arguments))
    }

    /// Removes every binding of this key to a destination.
    fn unbind(&mut self, key: &str, to: &Destination) {
        if let Some(bound) = self.bindings.get_mut(key) {
            bound.remove(to);
            if bound.is_empty() {
                self.bindings.remove(key);
            }
        }
    }

    /// Adds where a message goes from here.
    fn route<'a>(&'a self, message: &Message, found: &mut BTreeSet<&'a Destination>) {
        for key in &message.routing_keys {
            match self.kind {
                ExchangeKind::Direct => {
                    found.extend(self.bindings.get(key).into_iter().flat_map(BTreeMap::keys));
                }
                ExchangeKind::Topic => {
                    let matching =
                        self.bindings.iter().filter(|(pattern, _)| topic::matches(pattern, key));
                    found.extend(matching.flat_map(|(_, bound)| bound.keys()));
                }
                ExchangeKind::Fanout => {
                    found.extend(self.bindings.values().flat_map(BTreeMap::keys));
                }
                ExchangeKind::Headers => {
                    let bound = self.bindings.values().flatten();
                    let takes = |arguments: &Headers| {
                        header_match::matches(arguments, &message.properties.headers)
                    };
                    let matching = bound.filter(|(_, variants)| variants.iter().any(takes));
                    found.extend(matching.map(|(to, _)| to));
                }
            }
            // Only the keys of a message tell its routes apart here.
            if matches!(self.kind, ExchangeKind::Fanout | ExchangeKind::Headers) {
                return;
            }
        }
    }
}

impl State {
    /// Finds the queues that an exchange leads a message to; none for a missing exchange.
    ///
    /// A queue that is reached twice gets one copy. An exchange routes once, so a ring of them
    /// ends ("Exchange to Exchange Bindings"). One whose bindings take nothing hands on to its
    /// alternate; an alternate that does not exist takes nothing ("Alternate Exchanges").
    pub(super) fn reach(&self, exchange: &str, message: &Message) -> BTreeSet<String> {
        let mut queues = BTreeSet::new();
        let mut seen = BTreeSet::from([exchange]);
        let mut open = vec![exchange];
        while let Some(from) = open.pop().and_then(|name| self.exchanges.get(name)) {
            let mut found = BTreeSet::new();
            from.route(message, &mut found);
            let alternate = from.alternate().filter(|_| found.is_empty());
            let further = found.into_iter().filter_map(|to| match to {
                Destination::Exchange(name) => Some(name.as_str()),
                Destination::Queue(name) => {
                    queues.insert(name.clone());
                    None
                }
            });
            let exists = |name: &&str| self.exchanges.contains_key(*name);
            open.extend(further.chain(alternate).filter(exists).filter(|name| seen.insert(*name)));
        }
        queues
    }

    pub(super) fn has_exchange(&self, link: LinkId, name: &str) -> Result<bool> {
        self.check_open(link)?;
        Ok(self.exchanges.contains_key(name))
    }

    pub(super) fn has_binding(&self, link: LinkId, binding: &topology::Binding) -> Result<bool> {
        self.check_open(link)?;
        let topology::Binding { to, exchange, routing_key, arguments } = binding;
        let from = self.exchanges.get(exchange);
        Ok(from.is_some_and(|from| from.has(routing_key, to, arguments)))
    }

    /// Adds a binding whose ends exist.
    pub(super) fn add_binding(&mut self, binding: &topology::Binding) {
        let topology::Binding { to, exchange, routing_key, arguments } = binding;
        let Some(from) = self.exchanges.get_mut(exchange) else { return };
        from.bind(routing_key, to, arguments);
        let sources = self.sources.entry(to.clone()).or_default();
        sources.insert((exchange.clone(), routing_key.clone()));
    }

    /// Removes all bindings to a queue or exchange that is gone, and with them each auto-deleted
    /// exchange that they leave without any. One that never had a binding stays.
    pub(super) fn unbind(&mut self, gone: &Destination) {
        let mut left = BTreeSet::new();
        for (source, key) in self.sources.remove(gone).unwrap_or_default() {
            let Some(from) = self.exchanges.get_mut(&source) else { continue };
            from.unbind(&key, gone);
            if from.auto_delete && from.bindings.is_empty() {
                left.insert(source);
            }
        }
        for exchange in left {
            self.remove_exchange(&exchange);
        }
    }

    /// Removes an exchange with the bindings from it and to it.
    pub(super) fn remove_exchange(&mut self, name: &str) {
        let Some(exchange) = self.exchanges.remove(name) else { return };
        for (key, bound) in exchange.bindings {
            let source = (name.to_owned(), key);
            for to in bound.keys() {
                if let Some(sources) = self.sources.get_mut(to) {
                    sources.remove(&source);
                }
            }
        }
        self.unbind(&Destination::Exchange(name.to_owned()));
    }
}
