//! What was declared through the handle, so that it can be declared again.

use std::sync::{Mutex, PoisonError};

use super::state::Role;
use crate::topology::{Binding, Destination, Exchange, Queue, Topology};

/// The topology of this handle's lifetime, each object once, in the order of its first mention.
#[derive(Debug, Default)]
pub(crate) struct Declared(Mutex<Topology>);

impl Declared {
    /// Adds what was declared; an object of the same name is replaced.
    pub(crate) fn record(&self, topology: &Topology) {
        let mut declared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for exchange in &topology.exchanges {
            put(&mut declared.exchanges, exchange, |known| known.name == exchange.name);
        }
        for queue in &topology.queues {
            put(&mut declared.queues, queue, |known| known.name == queue.name);
        }
        for binding in &topology.bindings {
            put(&mut declared.bindings, binding, |known| known == binding);
        }
    }

    /// What a new connection of this role declares. Exclusive queues belong to the connection
    /// that consumes them.
    pub(crate) fn for_role(&self, role: Role) -> Topology {
        let mut topology = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if role == Role::Publish {
            let exclusive: Vec<String> =
                topology.queues.iter().filter(|q| q.exclusive).map(|q| q.name.clone()).collect();
            topology.queues.retain(|queue| !queue.exclusive);
            topology.bindings.retain(|binding| {
                !exclusive.iter().any(|queue| binding.queue() == Some(queue.as_str()))
            });
        }
        topology
    }

    /// What one queue needs to exist again: itself, its exchanges and its bindings; none if it
    /// was not declared here.
    pub(crate) fn for_queue(&self, name: &str) -> Option<Topology> {
        let declared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queue: &Queue = declared.queues.iter().find(|queue| queue.name == name)?;
        let (exchanges, bindings) = ways_to(name, &declared);
        Some(Topology { exchanges, queues: vec![queue.clone()], bindings })
    }

    /// Forgets the objects of a topology.
    pub(crate) fn forget(&self, topology: &Topology) {
        let mut declared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_exchange = |name: &str| topology.exchanges.iter().any(|of| of.name == name);
        let is_queue = |name: &str| topology.queues.iter().any(|of| of.name == name);
        declared.exchanges.retain(|exchange| !is_exchange(&exchange.name));
        declared.queues.retain(|queue| !is_queue(&queue.name));
        declared.bindings.retain(|binding| {
            !topology.bindings.contains(binding)
                && !is_exchange(&binding.exchange)
                && !binding.queue().is_some_and(is_queue)
        });
    }

    /// Forgets a queue that the application deleted on purpose.
    pub(crate) fn forget_queue(&self, name: &str) {
        let mut declared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        declared.queues.retain(|queue| queue.name != name);
        declared.bindings.retain(|binding| binding.queue() != Some(name));
    }
}

/// The bindings that lead to a queue, also over several exchanges, and their exchanges: an
/// auto-deleted one goes with the last binding that leads from it, and takes the bindings that lead
/// to it along.
fn ways_to(queue: &str, declared: &Topology) -> (Vec<Exchange>, Vec<Binding>) {
    let mut ends = vec![Destination::Queue(queue.to_owned())];
    let mut bindings = Vec::new();
    let mut next = 0;
    while let Some(end) = ends.get(next).cloned() {
        next += 1;
        for binding in declared.bindings.iter().filter(|binding| binding.to == end) {
            let from = Destination::Exchange(binding.exchange.clone());
            if !ends.contains(&from) {
                ends.push(from);
            }
            bindings.push(binding.clone());
        }
    }
    let is_on_the_way =
        |exchange: &&Exchange| bindings.iter().any(|binding| binding.exchange == exchange.name);
    (declared.exchanges.iter().filter(is_on_the_way).cloned().collect(), bindings)
}

fn put<T: Clone>(known: &mut Vec<T>, new: &T, same: impl Fn(&T) -> bool) {
    match known.iter_mut().find(|known| same(known)) {
        Some(known) => *known = new.clone(),
        None => known.push(new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_takes_its_bindings_along() {
        let declared = Declared::default();
        let topology = Topology::new()
            .exchange(Exchange::fanout("news"))
            .queue(Queue::classic("mine"))
            .queue(Queue::classic("yours"))
            .bind("mine", "news", "")
            .bind("yours", "news", "");
        declared.record(&topology);
        declared.forget(&Topology::new().queue(Queue::classic("mine")));
        let left = declared.for_role(Role::Consume);
        assert_eq!(left.queues.len(), 1);
        assert_eq!(left.bindings.len(), 1);
        assert_eq!(left.bindings[0].queue(), Some("yours"));
        declared.forget(&left);
        assert_eq!(declared.for_role(Role::Consume), Topology::new());
    }

    #[test]
    fn an_exclusive_queue_is_declared_again_only_where_it_is_consumed() {
        let declared = Declared::default();
        let topology = Topology::new()
            .exchange(Exchange::fanout("news"))
            .queue(Queue::classic("mine").exclusive())
            .bind("mine", "news", "");
        declared.record(&topology);
        declared.record(&topology);
        assert_eq!(declared.for_role(Role::Consume), topology);
        let publish = declared.for_role(Role::Publish);
        assert!(publish.queues.is_empty() && publish.bindings.is_empty());
        assert_eq!(publish.exchanges.len(), 1);
        assert_eq!(declared.for_queue("mine"), Some(topology));
        declared.forget_queue("mine");
        assert_eq!(declared.for_queue("mine"), None);
    }

    #[test]
    fn a_queue_is_declared_again_with_every_exchange_on_the_way_to_it() {
        let declared = Declared::default();
        let way = Topology::new()
            .exchange(Exchange::topic("all"))
            .exchange(Exchange::fanout("some").auto_delete())
            .queue(Queue::classic("mine"))
            .bind("mine", "some", "")
            .bind_exchange("some", "all", "a.#")
            .bind_exchange("all", "some", "a ring");
        let other = Topology::new()
            .exchange(Exchange::fanout("else"))
            .queue(Queue::classic("yours"))
            .bind("yours", "else", "");
        declared.record(&way);
        declared.record(&other);
        assert_eq!(declared.for_queue("mine"), Some(way));
        assert_eq!(declared.for_queue("yours"), Some(other));
    }
}
