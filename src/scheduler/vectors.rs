//! Runs the family's vectors for the scheduler.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    ladder::{Ladder, Rungs},
    parcel::{Label, to_rung, unwrapped, wrapped},
};
use crate::{
    message::{
        Envelope, Headers, Properties, Received,
        vectors::{each, headers, parts, text, vectors},
    },
    topology::QueueKind,
};

const NOW_MS: i64 = 1_790_000_000_000;

fn family() -> Rungs {
    Rungs::new(Ladder::Family, None).unwrap()
}

#[test]
fn every_part_of_the_vectors_is_run() {
    let known = ["exchange", "queues", "topology_source", "plans", "plans_note"];
    let more = ["next_hop", "on_rung", "on_delivery", "malformed"];
    parts("/scheduler", &[&known[..], &more[..]].concat());
}

#[test]
fn the_family_s_ladder_is_declared_to_the_letter() {
    let topology = family().topology();
    let [exchange] = &topology.exchanges[..] else { panic!("one exchange") };
    let expected = vectors("/scheduler/exchange");
    assert_eq!(json!(exchange.name), expected["name"]);
    assert_eq!(json!(exchange.kind.as_str()), expected["type"]);
    assert!(exchange.durable && exchange.arguments.is_empty());
    let queues = vectors("/scheduler/queues");
    assert_eq!(topology.queues.len(), queues.as_array().unwrap().len());
    each("/scheduler/queues", |expected| {
        let name = text(expected, "name");
        let queue = topology.queues.iter().find(|queue| queue.name == name).unwrap();
        assert_eq!((queue.kind, queue.durable), (QueueKind::Classic, true));
        let arguments: serde_json::Map<String, Value> = queue
            .arguments
            .iter()
            .map(|(name, value)| {
                let number = value.as_i64().map(Value::from);
                (name.to_owned(), number.or(value.as_str().map(Value::from)).unwrap())
            })
            .collect();
        assert_eq!(Value::from(arguments), expected["arguments"]);
        let bound = topology.bindings.iter().any(|binding| {
            binding.queue() == Some(name)
                && binding.exchange == text(&expected["bind"], "exchange")
                && binding.routing_key == text(&expected["bind"], "routing_key")
        });
        assert!(bound, "{name}");
    });
}

#[test]
fn plans_take_the_hops_of_the_family() {
    each("/scheduler/plans", |case| {
        let mut remaining = case["delay_ms"].as_i64().unwrap();
        let mut path: Vec<(String, u64)> = Vec::new();
        while let Some(hop) = family().next(remaining) {
            let rung = hop.routing_key.strip_prefix("acemq.schedule.").unwrap().to_owned();
            let queues = family().topology().queues;
            let queue = queues.iter().find(|queue| queue.name == hop.routing_key).unwrap();
            remaining -= queue.arguments.get("x-message-ttl").unwrap().as_i64().unwrap();
            match path.last_mut() {
                Some((last, times)) if *last == rung => *times += 1,
                _ => path.push((rung, 1)),
            }
        }
        let hops: u64 = path.iter().map(|(_, times)| times).sum();
        let path: Vec<Value> =
            path.iter().map(|(rung, times)| json!({ "rung": rung, "times": times })).collect();
        assert_eq!(json!(hops), case["hops"]);
        assert_eq!(json!(path), case["path"]);
        assert_eq!(json!(remaining), case["left_undelayed_ms"]);
    });
}

#[test]
fn the_next_hop_is_the_longest_rung_that_fits() {
    each("/scheduler/next_hop", |case| {
        let remaining = case["due_ms"].as_i64().unwrap() - case["now_ms"].as_i64().unwrap();
        let next = family().next(remaining).map_or("deliver".to_owned(), |hop| hop.routing_key);
        assert_eq!(next, text(case, "expect"));
    });
}

fn arrived(properties: Properties) -> Received {
    Received {
        queue: "acemq.schedule.due".into(),
        exchange: "acemq.schedule".into(),
        routing_key: "acemq.schedule.due".into(),
        redelivered: false,
        envelope: Envelope::from_properties(&properties, "acemq.schedule.due", NOW_MS),
        properties,
        body: Bytes::from_static(b"{\"n\":1}"),
        span: tracing::Span::none(),
    }
}

#[test]
fn a_message_on_a_rung_and_on_delivery_is_what_the_family_reads() {
    let case = vectors("/scheduler/on_rung");
    let label = Label {
        exchange: text(&case["target"], "exchange").to_owned(),
        routing_key: text(&case["target"], "routing_key").to_owned(),
        due_ms: case["due_ms"].as_i64().unwrap(),
        content_type: text(&case, "payload_content_type").to_owned(),
    };
    let expected = &case["expect"];
    let hop = family().next(label.due_ms - NOW_MS).unwrap();
    let envelope = Envelope::of("invoice.due").correlation("c").header("x-tenant", "acme");
    let envelope = envelope.completed("invoice.due", NOW_MS, None);
    let draft = wrapped(&label, hop, envelope.clone(), Bytes::from_static(b"{\"n\":1}"));
    assert_eq!(draft.exchange, text(expected, "exchange"));
    assert_eq!(draft.routing_key, text(expected, "routing_key"));
    assert!(draft.mandatory);
    let properties = draft.properties.carrying(&draft.envelope);
    assert_eq!(properties.content_type.as_deref(), expected["content_type"].as_str());
    for (name, value) in headers(&expected["headers"]).iter() {
        assert_eq!(properties.headers.get(name), Some(value), "{name}");
    }

    // Through another rung and out: the message that was scheduled, without a trace of the way.
    let on_rung = arrived(properties);
    let again = to_rung(&on_rung, family().next(1000).unwrap());
    assert_eq!(again.properties.headers, on_rung.properties.headers);
    let on_rung = arrived(again.properties);
    let label = Label::read(on_rung.envelope.headers()).unwrap();
    let delivered = unwrapped(&on_rung, label);
    let expected = &vectors("/scheduler/on_delivery")["expect"];
    assert_eq!(delivered.exchange, text(expected, "exchange"));
    assert_eq!(delivered.routing_key, text(expected, "routing_key"));
    assert_eq!(delivered.properties.content_type.as_deref(), expected["content_type"].as_str());
    for name in expected["headers_absent"].as_array().unwrap() {
        assert_eq!(delivered.properties.headers.get(name.as_str().unwrap()), None);
    }
    let arrived = Envelope::from_properties(&delivered.properties, "invoice.due", NOW_MS);
    assert_eq!(arrived.id(), envelope.id());
    assert_eq!(arrived.correlation_id(), "c");
    assert_eq!(arrived.message_type(), "invoice.due");
    assert_eq!(arrived.headers().len(), 1);
}

#[test]
fn malformed_labels_are_refused_and_lenient_ones_read() {
    each("/scheduler/malformed", |case| {
        let read = Label::read(&headers(&case["headers"]));
        assert_eq!(read.is_ok(), text(case, "expect").starts_with("accepted"), "{read:?}");
    });
    assert!(Label::read(&Headers::new()).is_err());
}
