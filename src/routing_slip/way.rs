//! Where a message goes after a stop, as a pure rule.

use chrono::{DateTime, Utc};

use super::{
    answer::Forward,
    undo::{self, Undo},
};
use crate::message::{Envelope, Itinerary};

/// What a slip may not exceed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Stops that are done.
    pub(super) hops: usize,
    /// Bytes of the slip and of what undoes it, as headers.
    pub(super) size: usize,
}

/// Where a message goes.
#[derive(Debug)]
pub(super) enum Way {
    On {
        exchange: String,
        routing_key: String,
        envelope: Box<Envelope>,
    },
    /// The route is at its end.
    Complete,
}

/// Decides where a message goes; an error says why it can go nowhere.
pub(super) fn way(
    envelope: &Envelope,
    forward: Forward,
    now: DateTime<Utc>,
    limits: Limits,
) -> Result<Way, String> {
    let route = route(envelope)?;
    let done = route.next().map(ToString::to_string);
    let mut route = route.advance(now);
    if let Some(revise) = forward.revise {
        let before = route.done().to_vec();
        route = revise(route);
        if route.done() != before {
            return Err("its handler changed stops that are done".to_owned());
        }
    }
    let Some(stop) = route.next().filter(|_| !forward.ends) else { return Ok(Way::Complete) };
    if route.done().len() >= limits.hops {
        return Err(format!("it has made {} hops, which is the limit", limits.hops));
    }
    let mut undos = undo::read(envelope.headers())?;
    undos.extend(forward.undo.map(|undo| Undo { name: done, ..undo }));
    let (slip, undos) = (route.to_header(), (!undos.is_empty()).then(|| undo::write(&undos)));
    let size = slip.len() + undos.as_ref().map_or(0, String::len);
    if size > limits.size {
        return Err(format!("its slip takes {size} bytes, and {} is the limit", limits.size));
    }
    let (exchange, routing_key) = (stop.exchange().to_owned(), stop.routing_key().to_owned());
    // With the position, since a route may come to one address twice.
    let to = format!("{exchange}/{routing_key}/{}", route.done().len());
    let mut on = envelope.next_hop(&to).header(Itinerary::HEADER, slip);
    if let Some(undos) = undos {
        on = on.header(undo::HEADER, undos);
    }
    Ok(Way::On { exchange, routing_key, envelope: Box::new(on) })
}

/// Refuses a message whose slip says nothing that could be followed.
pub(super) fn readable(envelope: &Envelope) -> Result<(), String> {
    route(envelope)?;
    undo::read(envelope.headers()).map(drop)
}

/// The route of a message: a slip is what brings a message to a stop.
fn route(envelope: &Envelope) -> Result<Itinerary, String> {
    match Itinerary::from(envelope.headers()) {
        Ok(Some(route)) => Ok(route),
        Ok(None) => Err("it carries no itinerary".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The message that undoes the stop that was done last, and what remains to be undone after it;
/// none if nothing is left. `own` undoes the stop that gives the message up, where its work is done.
pub(super) fn back(
    envelope: &Envelope,
    own: Option<Undo>,
    reason: &str,
) -> Result<Option<(Undo, Envelope)>, String> {
    let mut undos = undo::read(envelope.headers())?;
    if let Some(own) = own {
        let name = route(envelope)?.next().map(ToString::to_string);
        undos.push(Undo { name, ..own });
    }
    let Some(last) = undos.pop() else { return Ok(None) };
    let to = format!("undo/{}/{}/{}", last.exchange, last.routing_key, undos.len());
    let back = envelope
        .next_hop(&to)
        .header(undo::HEADER, undo::write(&undos))
        .header(DATA, last.data.as_str())
        .header(UNDOES, last.name.clone().unwrap_or_default())
        .header(REASON, crate::error::cut(reason, 1024));
    Ok(Some((last, back)))
}

/// On a message that undoes: what the stop has left behind for it.
pub(super) const DATA: &str = "acemq-slip-undo-data";
/// On a message that undoes: the stop that is undone, and why.
pub(super) const UNDOES: &str = "acemq-slip-undoes";
pub(super) const REASON: &str = "acemq-slip-reason";
