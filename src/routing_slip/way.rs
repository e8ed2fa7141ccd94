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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Headers;

    const LIMITS: Limits = Limits { hops: 2000, size: 200_000 };

    fn hop(envelope: &Envelope, forward: Forward) -> Result<Way, String> {
        way(envelope, forward, DateTime::UNIX_EPOCH, LIMITS)
    }

    fn headers(envelope: &Envelope) -> Headers {
        envelope.clone().completed("key", 1, None).to_headers()
    }

    #[test]
    fn a_thousand_hops_add_the_time_of_each_stop_and_nothing_else() {
        let mut route = Itinerary::new();
        for number in 0..1001 {
            route = route.then("orders", format!("step-{number:04}"));
        }
        let mut envelope = Envelope::of("order").header(Itinerary::HEADER, route.to_header());
        // The first hop adds what every message of a route has, such as its cause.
        let Ok(Way::On { envelope: first, .. }) = hop(&envelope, Forward::unchanged()) else {
            panic!("the first stop leads on");
        };
        let stamp = r#","completedAt":"1970-01-01T00:00:00Z""#.len();
        let (names, size) = (headers(&first).len(), headers(&first).encoded_len());
        envelope = *first;
        for done in 2..=1000 {
            let Ok(Way::On { envelope: next, .. }) = hop(&envelope, Forward::unchanged()) else {
                panic!("stop {done} leads on");
            };
            let grown = headers(&next);
            assert_eq!((grown.len(), grown.encoded_len()), (names, size + stamp * (done - 1)));
            envelope = *next;
        }
        assert!(matches!(hop(&envelope, Forward::unchanged()), Ok(Way::Complete)));
    }

    #[test]
    fn a_route_that_renews_itself_ends_at_the_limit() {
        let again = || Forward::unchanged().revise(|route| route.then("", "again"));
        let route = Itinerary::new().then("", "again");
        let mut envelope = Envelope::new().header(Itinerary::HEADER, route.to_header());
        for _ in 1..LIMITS.hops {
            let Ok(Way::On { envelope: next, .. }) = hop(&envelope, again()) else {
                panic!("within the limit");
            };
            envelope = *next;
        }
        let refused = hop(&envelope, again()).unwrap_err();
        assert!(refused.contains("2000 hops"), "{refused}");
    }

    #[test]
    fn a_slip_of_ten_thousand_stops_is_refused_by_its_size() {
        let mut route = Itinerary::new();
        for _ in 0..10_000 {
            route = route.then("", "again");
        }
        let envelope = Envelope::new().header(Itinerary::HEADER, route.to_header());
        let refused = hop(&envelope, Forward::unchanged()).unwrap_err();
        assert!(refused.contains("bytes"), "{refused}");
    }

    #[test]
    fn the_way_back_leads_through_what_was_left_behind_in_reverse() {
        let undo = |name: &str| Undo {
            exchange: String::new(),
            routing_key: format!("{name}.undo"),
            name: Some(name.to_owned()),
            data: name.to_owned(),
        };
        let left = undo::write(&[undo("hotel"), undo("flight")]);
        let route = Itinerary::new().then_named("car", "", "cars");
        let envelope =
            Envelope::new().header(Itinerary::HEADER, route.to_header()).header(undo::HEADER, left);
        let (mut envelope, mut own) = (envelope, Some(Undo { name: None, ..undo("car") }));
        for name in ["car", "flight", "hotel"] {
            let (undone, next) = back(&envelope, own.take(), "no money").unwrap().unwrap();
            assert_eq!(undone, undo(name));
            let text = |header| next.headers().get(header).and_then(|value| value.as_str());
            assert_eq!((text(DATA), text(UNDOES)), (Some(name), Some(name)));
            assert_eq!(text(REASON), Some("no money"));
            assert_ne!(next.id(), envelope.id());
            envelope = next;
        }
        assert_eq!(back(&envelope, None, "no money").unwrap(), None);
    }
}
