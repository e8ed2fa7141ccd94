//! The rungs that hold messages, and which one comes next.

use std::time::Duration;

use super::binary;
use crate::{
    error::Result,
    topology::{Exchange, Queue, Topology, check_name},
};

/// The name that the exchange and the queues of the family's ladder begin with.
const FAMILY: &str = "acemq.schedule";

/// The family's rungs, the longest first (wire contract, section 10).
const RUNGS: [(&str, u64); 5] =
    [("1h", 3_600_000), ("10m", 600_000), ("1m", 60_000), ("10s", 10_000), ("1s", 1000)];

/// Which queues hold scheduled messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Ladder {
    /// The ladder that every AceMQ library knows: five classic queues, from an hour to a second.
    ///
    /// A message is delivered at most a second early and, while a scheduler runs, about a second
    /// late at worst. A day is 24 hops, each through a scheduler.
    #[default]
    Family,
    /// A ladder of this crate's own, for services that share it with Rust services only: 25 quorum
    /// queues whose times double from a second on.
    ///
    /// A message is never early, and about a second late at most. 30 days are at most 22 hops, and
    /// none of them needs a running scheduler: only the delivery does. It takes 25 queues, and a
    /// broker from RabbitMQ 3.10 on.
    Binary,
}

/// The next publish of a message that is not due yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) exchange: String,
    pub(super) routing_key: String,
}

/// A ladder under its name.
#[derive(Debug, Clone)]
pub(super) struct Rungs {
    ladder: Ladder,
    name: String,
}

impl Rungs {
    /// Under the family's name or one of the caller's.
    pub(super) fn new(ladder: Ladder, prefix: Option<String>) -> Result<Self> {
        let name = prefix.unwrap_or_else(|| match ladder {
            Ladder::Family => FAMILY.to_owned(),
            Ladder::Binary => binary::NAME.to_owned(),
        });
        // With room for the longest suffix.
        check_name("prefix", &format!("{name}.due.parked"))?;
        Ok(Self { ladder, name })
    }

    /// The queue that messages come to when a scheduler has to look at them.
    pub(super) fn control_queue(&self) -> String {
        format!("{}.due", self.name)
    }

    /// Where a message goes for the rest of its time; none if it is to be delivered now.
    pub(super) fn next(&self, remaining_ms: i64) -> Option<Hop> {
        let remaining = u64::try_from(remaining_ms).unwrap_or(0);
        match self.ladder {
            Ladder::Family => {
                let (rung, _) = RUNGS.iter().find(|(_, ttl)| *ttl <= remaining)?;
                Some(Hop { exchange: self.name.clone(), routing_key: self.rung(rung) })
            }
            Ladder::Binary => binary::next(&self.name, remaining),
        }
    }

    pub(super) fn topology(&self) -> Topology {
        match self.ladder {
            Ladder::Family => self.family(),
            Ladder::Binary => binary::topology(&self.name, &self.control_queue()),
        }
    }

    fn rung(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    fn family(&self) -> Topology {
        let (exchange, control) = (self.name.as_str(), self.control_queue());
        let mut topology = Topology::new()
            .exchange(Exchange::direct(exchange))
            .queue(Queue::classic(control.as_str()))
            .bind(control.as_str(), exchange, control.as_str());
        for (rung, ttl) in RUNGS {
            let rung = self.rung(rung);
            let queue = Queue::classic(rung.as_str())
                .message_ttl(Duration::from_millis(ttl))
                .dead_letter_to(exchange, control.as_str());
            topology = topology.queue(queue).bind(rung.as_str(), exchange, rung.as_str());
        }
        topology
    }
}
