//! The route of a pipeline, and where a message goes next.

use chrono::{DateTime, Utc};

use crate::{
    error::Result,
    message::{Envelope, Itinerary, RoutingSlip, Slip},
    topology::{Exchange, Queue, Topology, standard},
};

/// A declared pipeline.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) steps: Vec<String>,
    /// Where the result of the last step goes.
    pub(super) results: Option<(String, String)>,
}

/// What lies ahead of a message, read from its slip before its step is run.
#[derive(Debug, PartialEq)]
pub(super) enum Ahead {
    /// The slip that carries its addresses.
    Itinerary(Itinerary),
    /// A step of this declaration; with the slip, where the message has one.
    Step { name: String, slip: Option<RoutingSlip> },
    /// This is the end.
    Nothing,
}

/// Where a message goes after a step.
#[derive(Debug, PartialEq)]
pub(super) enum Way {
    /// To the next stop, with this envelope.
    On { exchange: String, routing_key: String, envelope: Box<Envelope> },
    /// Nowhere: the run is complete.
    Complete,
}

impl Plan {
    pub(super) fn queue(&self, step: &str) -> String {
        standard::step_queue_name(&self.name, step)
    }

    /// The exchange, and the queue of each step bound under its name (wire contract, section 11.1).
    pub(super) fn topology(&self) -> Topology {
        let mut topology = Topology::new().exchange(Exchange::direct(self.name.as_str()));
        for step in &self.steps {
            let queue = self.queue(step);
            topology = topology.queue(Queue::quorum(queue.as_str())).bind(
                queue.as_str(),
                self.name.as_str(),
                step.as_str(),
            );
        }
        topology
    }

    /// The slip of a message that enters.
    pub(super) fn slip(&self) -> Option<RoutingSlip> {
        RoutingSlip::new(self.steps.iter().map(String::as_str))
    }

    /// What is ahead of a message at the step of this index (wire contract, section 11.2): what
    /// the slip says that it carries, else this declaration. An error says why it can go nowhere.
    pub(super) fn ahead(
        &self,
        index: usize,
        envelope: &Envelope,
    ) -> std::result::Result<Ahead, String> {
        match Slip::of(envelope).map_err(|error| error.to_string())? {
            Some(Slip::Itinerary(itinerary)) => Ok(Ahead::Itinerary(itinerary)),
            Some(Slip::Route(route)) => {
                let advanced = route.advance();
                let Some(name) = advanced.current().map(str::to_owned) else {
                    return Ok(Ahead::Nothing);
                };
                if !self.steps.contains(&name) {
                    // Of a foreign declaration: a guess could run the wrong step.
                    return Err(format!("its route names `{name}`, which is no step here"));
                }
                Ok(Ahead::Step { name, slip: Some(advanced) })
            }
            None => Ok(match self.steps.get(index + 1) {
                Some(name) => Ahead::Step { name: name.clone(), slip: None },
                None => Ahead::Nothing,
            }),
        }
    }

    /// The hop to what is ahead (wire contract, section 11.3), of a step that is done `now`.
    pub(super) fn way(&self, ahead: Ahead, envelope: &Envelope, now: DateTime<Utc>) -> Way {
        match ahead {
            Ahead::Nothing => Way::Complete,
            Ahead::Itinerary(itinerary) => {
                let remaining = itinerary.advance(now);
                let Some(stop) = remaining.next() else { return Way::Complete };
                let (exchange, routing_key) =
                    (stop.exchange().to_owned(), stop.routing_key().to_owned());
                let on = envelope
                    .next_hop(&format!("{exchange}/{routing_key}"))
                    .header(Itinerary::HEADER, remaining.to_header());
                Way::On { exchange, routing_key, envelope: Box::new(on) }
            }
            Ahead::Step { name, slip } => {
                let on = envelope.next_hop(&format!("{}/{name}", self.name));
                let on = match slip {
                    Some(slip) => on.with_route(slip),
                    None => on,
                };
                let exchange = self.name.clone();
                Way::On { exchange, routing_key: name, envelope: Box::new(on) }
            }
        }
    }
}

/// The names that a pipeline and its steps may have.
pub(super) fn check(plan: &Plan) -> Result<()> {
    use crate::{error::Error, message::check_step_name, topology::check_name};

    check_name("pipeline", &plan.name)?;
    for (index, step) in plan.steps.iter().enumerate() {
        check_step_name(step)?;
        check_name("step", &standard::parked_name(&plan.queue(step)))?;
        if plan.steps[..index].contains(step) {
            return Err(Error::invalid("step", step, "is the name of two steps"));
        }
    }
    if plan.steps.is_empty() {
        return Err(Error::invalid("pipeline", &plan.name, "has no steps"));
    }
    Ok(())
}
