//! Every exchange and queue of the shop, in one place.

use acemq::{Exchange, Queue, Topology};

#[derive(Debug, Clone)]
pub struct Names {
    prefix: String,
}

impl Names {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Events of orders: `order.placed`, `order.paid`, `order.cancelled`.
    pub fn orders(&self) -> String {
        format!("{}.orders", self.prefix)
    }

    pub fn fulfilment(&self) -> String {
        format!("{}.fulfilment", self.prefix)
    }

    pub fn offers(&self) -> String {
        format!("{}.offers", self.prefix)
    }

    pub fn ledger(&self) -> String {
        format!("{}.ledger", self.prefix)
    }

    pub fn reviews(&self) -> String {
        format!("{}.reviews", self.prefix)
    }

    pub fn reminders(&self) -> String {
        format!("{}.reminders", self.prefix)
    }

    pub fn cancellations(&self) -> String {
        format!("{}.cancellations", self.prefix)
    }

    pub fn schedule(&self) -> String {
        format!("{}.schedule", self.prefix)
    }

    /// The ordered queue and the scheduler declare what they need themselves.
    pub fn topology(&self) -> Topology {
        Topology::new()
            .exchange(Exchange::topic(self.orders()))
            .queue(Queue::new(self.fulfilment()))
            .bind(self.fulfilment(), self.orders(), "order.placed")
            .queue(Queue::new(self.reviews()))
            .bind(self.reviews(), self.orders(), "order.paid")
            .queue(Queue::new(self.cancellations()))
            .bind(self.cancellations(), self.orders(), "order.cancelled")
            .queue(Queue::new(self.reminders()))
            .queue(Queue::new(self.offers()))
    }
}
