//! Runs the family's vectors for request and reply.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    answering::reply_draft,
    call::{Call, CallOptions},
    error::RequestError,
    pending::Pending,
    reply::{decoded, raw, read_reply},
    responder_error::ResponderError,
};
use crate::{
    message::{
        Envelope, Message, Properties, Received,
        vectors::{each, headers, parts, text, vectors, written},
    },
    publish::Draft,
    topology::{Queue, QueueKind, standard},
};

const NOW_MS: i64 = 1_790_000_000_000;

#[test]
fn every_part_of_the_vectors_is_run() {
    parts("/request_reply", &["request", "reply_address", "reply", "match", "defaults"]);
}

/// The properties as they go out.
fn sent(draft: Draft) -> Properties {
    draft.envelope.check().unwrap();
    let envelope = draft.envelope.completed(&draft.routing_key, NOW_MS, None);
    draft.properties.carrying(&envelope)
}

fn received(properties: Properties, body: &str) -> Arc<Received> {
    Arc::new(Received {
        queue: "q".into(),
        exchange: String::new(),
        routing_key: "q".into(),
        redelivered: false,
        envelope: Envelope::from_properties(&properties, "q", NOW_MS),
        properties,
        body: Bytes::from(body.to_owned()),
        span: tracing::Span::none(),
    })
}

#[test]
fn requests_are_written_as_the_contract_says() {
    let case = vectors("/request_reply/request");
    let known = ["name", "source", "request_queue", "reply_queue", "id", "now_ms", "expect"];
    parts("/request_reply/request", &[&known[..], &["note"]].concat());
    assert_eq!(case["now_ms"], NOW_MS);
    let call = Call {
        exchange: "",
        routing_key: text(&case, "request_queue"),
        content_type: "application/json",
        body: Bytes::new(),
    };
    let options = CallOptions::new().never_expires();
    let draft = options.draft(&call, text(&case, "id"), text(&case, "reply_queue"));
    let expected = &case["expect"];
    assert!(draft.mandatory);
    assert_eq!(draft.exchange, text(expected, "exchange"));
    assert_eq!(draft.routing_key, text(expected, "routing_key"));
    let properties = sent(draft);
    let stated = json!({
        "message_id": properties.message_id,
        "reply_to": properties.reply_to,
        "delivery_mode": if properties.persistent { 2 } else { 1 },
        "content_type": properties.content_type,
    });
    assert_eq!(stated, expected["properties"]);
    assert_eq!(properties.headers, written(&expected["headers"]));

    // The same, with what this member adds by default: the timeout as TTL.
    let draft = CallOptions::from(Duration::from_secs(2)).draft(&call, "i", "r");
    assert_eq!(sent(draft).expiration.as_deref(), Some("2000"));
    let endless = CallOptions::from(Duration::MAX).draft(&call, "i", "r");
    assert_eq!(sent(endless).expiration.as_deref(), Some("4294967295"));
}

#[test]
fn reply_addresses_are_found_in_the_header_then_in_the_property() {
    each("/request_reply/reply_address", |case| {
        let properties = Properties {
            headers: headers(&case["headers"]),
            reply_to: case["property_reply_to"].as_str().map(str::to_owned),
            ..Properties::default()
        };
        let message = Message::new((), received(properties, ""));
        assert_eq!(message.reply_to(), case["expect"].as_str());
    });
}

#[test]
fn replies_are_written_as_the_contract_says() {
    each("/request_reply/reply", |case| {
        let request = &case["request"];
        let envelope =
            Envelope::new().with_id(text(request, "id")).correlation(text(request, "correlation"));
        let request_headers = Properties::default().carrying(&envelope);
        let answer = match case.get("handler_error") {
            Some(error) => Err(ResponderError::new("", error.as_str().unwrap())),
            None => Ok(Bytes::from_static(b"7")),
        };
        let request_received = received(request_headers, "");
        let address = text(request, "reply_to");
        let draft = reply_draft(&request_received, address, None, "application/json", &answer);
        let expected = &case["expect"];
        assert!(draft.mandatory);
        assert_eq!(draft.exchange, text(expected, "exchange"));
        assert_eq!(draft.routing_key, text(expected, "routing_key"));
        if let Some(body) = expected.get("body") {
            assert_eq!(draft.body, body.as_str().unwrap());
        }
        let properties = sent(draft);
        if let Some(content_type) = expected.get("content_type") {
            assert_eq!(properties.content_type.as_deref(), content_type.as_str());
        }
        let reply = Envelope::from_properties(&properties, "q", NOW_MS);
        assert_eq!(reply.correlation_id(), text(expected, "correlation"));
        assert_eq!(reply.causation_id(), expected["causation"].as_str());
        assert_ne!(reply.id(), envelope.id());
        let wanted = headers(expected.get("headers").unwrap_or(&Value::Null));
        for (name, value) in wanted.iter() {
            assert_eq!(properties.headers.get(name), Some(value));
        }
        for absent in expected["headers_absent"].as_array().into_iter().flatten() {
            assert_eq!(properties.headers.get(absent.as_str().unwrap()), None);
        }
    });
}

#[test]
fn replies_end_exactly_the_call_of_their_correlation() {
    each("/request_reply/match", |case| {
        let pending = Arc::<Pending>::default();
        let calls: Vec<_> = case["pending"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| pending.enter_one(id.as_str().unwrap(), 0))
            .collect();
        let reply = &case["reply"];
        let envelope = Envelope::new().correlation(text(reply, "correlation"));
        let mut properties = Properties::default().carrying(&envelope);
        properties.headers.extend(headers(reply.get("headers").unwrap_or(&Value::Null)));
        pending.complete(received(properties, reply["body"].as_str().unwrap_or("7")));

        let mut replies = calls.into_iter();
        let mut answer = || {
            let (_in_flight, mut reply) = replies.next().unwrap();
            reply.try_recv()
        };
        match text(case, "expect") {
            "completes r-1" => {
                read_reply(answer().unwrap(), raw).unwrap();
            }
            "completes r-1 (an empty header is absent)" => {
                read_reply(answer().unwrap(), decoded::<()>).unwrap();
            }
            "fails r-1 with remote error 'no stock for A-1'; the body is not decoded" => {
                let read = |_: &_| -> Result<(), _> { panic!("the body was read") };
                match read_reply(answer().unwrap(), read) {
                    Err(RequestError::ResponderFailed { error_type, message }) => {
                        assert_eq!(error_type, "Error");
                        assert_eq!(message, "no stock for A-1");
                    }
                    other => panic!("{other:?}"),
                }
            }
            "acknowledged, dropped, unmatched + 1" => {
                assert_eq!(pending.stats().unmatched, 1);
                assert_eq!(pending.stats().in_flight, 1);
            }
            "acknowledged, dropped, unmatched + 1 (late reply)" => {
                assert_eq!(pending.stats().unmatched, 1);
            }
            other => panic!("no such expectation: {other}"),
        }
    });
}

#[test]
fn the_defaults_are_the_familys() {
    let defaults = vectors("/request_reply/defaults");
    parts("/request_reply/defaults", &["timeout_ms", "reply_queue_expires_ms", "source"]);
    let timeout = CallOptions::new().time_limit();
    assert_eq!(json!(crate::clock::millis(timeout)), defaults["timeout_ms"]);
    let queue = reply_queue("q");
    let expires = queue.arguments.get("x-expires").and_then(crate::HeaderValue::as_i64);
    assert_eq!(json!(expires), defaults["reply_queue_expires_ms"]);
}

fn reply_queue(name: &str) -> Queue {
    let topology = standard::reply_queue(name);
    // Nothing beside the queue: no dead-letter queue, no parked queue, no binding.
    assert!(topology.exchanges.is_empty() && topology.bindings.is_empty());
    assert_eq!(topology.queues.len(), 1);
    topology.queues[0].clone()
}

#[test]
fn the_reply_queue_is_declared_to_the_argument() {
    let expected = vectors("/topology/reply_queue");
    let known = ["name_pattern", "type", "durable", "exclusive", "auto_delete", "arguments"];
    parts("/topology/reply_queue", &[&known[..], &["source"]].concat());
    let name = standard::reply_queue_name();
    let uuid = name.strip_prefix("acemq.reply.").unwrap();
    assert_eq!(text(&expected, "name_pattern"), "acemq.reply.{uuid}");
    assert_eq!(uuid::Uuid::parse_str(uuid).unwrap().to_string(), uuid);
    let queue = reply_queue(&name);
    assert_eq!((queue.kind, text(&expected, "type")), (QueueKind::Classic, "classic"));
    assert_eq!(expected["durable"], queue.durable);
    assert_eq!(expected["exclusive"], queue.exclusive);
    assert_eq!(expected["auto_delete"], queue.auto_delete);
    let arguments: serde_json::Map<String, Value> = queue
        .arguments
        .iter()
        .map(|(name, value)| (name.to_owned(), json!(value.as_i64())))
        .collect();
    assert_eq!(expected["arguments"], Value::Object(arguments));
}
