//! Runs the family's test vectors (`tests/vectors.json`) for everything that travels.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::{header::is_reserved, *};
use crate::topology::standard;

/// Parses the file and returns the part at a JSON pointer, which has to exist.
pub(crate) fn vectors(pointer: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../../tests/vectors.json")).unwrap();
    all.pointer(pointer).unwrap_or_else(|| panic!("no vectors at {pointer}")).clone()
}

/// Runs every case of a list, then fails with the list of those that failed.
pub(crate) fn each(pointer: &str, test: impl Fn(&Value)) {
    let cases = vectors(pointer);
    let cases = cases.as_array().unwrap_or_else(|| panic!("{pointer} is not a list"));
    assert!(!cases.is_empty(), "{pointer} has no cases");
    let failed: Vec<String> = cases
        .iter()
        .enumerate()
        .filter(|(_, case)| catch_unwind(AssertUnwindSafe(|| test(case))).is_err())
        .map(|(index, case)| match case["name"].as_str() {
            Some(name) => format!("{pointer}/{index} ({name})"),
            None => format!("{pointer}/{index} {case}"),
        })
        .collect();
    assert!(failed.is_empty(), "{} vectors fail:\n{}", failed.len(), failed.join("\n"));
}

/// Fails when a section has other parts than the ones that tests name.
pub(crate) fn parts(pointer: &str, known: &[&str]) {
    let section = vectors(pointer);
    let found: Vec<&str> =
        section.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    let mut known = known.to_vec();
    known.sort_unstable();
    assert_eq!(found, known, "parts of `{pointer}`");
}

/// The sections that tests run.
const RUN: &[&str] = &[
    "envelope_write",
    "envelope_write_refused",
    "envelope_read",
    "envelope_derive",
    "replay",
    "itinerary",
    "routing_slip",
    "content_types",
    "reserved_prefix",
    "retry",
    "request_reply",
];

/// The sections that wait for their pattern; whoever builds it moves the name to `RUN`. Of
/// `topology`, the retry set and the source queue run beside the retry policy, the reply queue
/// beside the requester.
const NOT_RUN_YET: &[&str] = &[
    "partition",
    "scheduler",
    "topology",
    "claim_check",
    "encryption",
    "outbox_claim",
    "idempotency",
    "exercised_metrics",
];

const PROSE: &[&str] =
    &["about", "conventions", "source_versions", "content_types_source", "reserved_prefix_source"];

#[test]
fn every_section_of_the_vectors_is_accounted_for() {
    parts("", &[RUN, NOT_RUN_YET, PROSE].concat());
    parts("/replay", &["stamp", "read_at"]);
    let itinerary =
        ["header", "encode", "advance", "decode", "decode_fatal", "decode_fatal_expect"];
    parts("/itinerary", &itinerary);
    parts("/routing_slip", &["headers", "decode", "advance", "precedence", "step_names"]);
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is not text in {value}"))
}

fn fields(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

pub(super) fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// A header as the vectors give it; 64 bits wide only where 32 do not hold the number.
pub(crate) fn header_value(value: &Value) -> HeaderValue {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => {
            let number = number.as_i64().unwrap();
            i32::try_from(number).map_or(HeaderValue::Long(number), HeaderValue::Int)
        }
        Value::String(text) => text.as_str().into(),
        Value::Object(bytes) => HeaderValue::Bytes(Bytes::from(
            bytes["$bytes_utf8"].as_str().unwrap().as_bytes().to_vec(),
        )),
        Value::Null | Value::Array(_) => panic!("the vectors have no such header: {value}"),
    }
}

pub(crate) fn headers(value: &Value) -> Headers {
    fields(value).iter().map(|(name, value)| (name.as_str(), header_value(value))).collect()
}

/// Headers as the contract has them written: the first-seen time is 64 bits wide.
pub(crate) fn written(value: &Value) -> Headers {
    let mut headers = headers(value);
    if let Some(first_seen) = headers.get(header::FIRST_SEEN).and_then(HeaderValue::as_i64) {
        headers.insert(header::FIRST_SEEN, first_seen);
    }
    headers
}

fn is_fresh_uuid(text: &str) -> bool {
    uuid::Uuid::parse_str(text).is_ok_and(|id| id.get_version_num() == 4 && id.to_string() == text)
}

/// Compares text with the expectation; `$fresh_uuid` stands for any new UUID, null for absence.
#[track_caller]
pub(super) fn assert_text(found: Option<&str>, expected: &Value) {
    match expected.as_str() {
        Some("$fresh_uuid") => assert!(found.is_some_and(is_fresh_uuid), "{found:?} is no UUID"),
        expected => assert_eq!(found, expected),
    }
}

fn build(fields: &Value) -> Envelope {
    let integer = |value: &Value| i32::try_from(value.as_i64().unwrap()).unwrap();
    let mut envelope = Envelope::of(fields["type"].as_str().unwrap_or_default());
    for (field, value) in self::fields(fields) {
        let text = || value.as_str().unwrap();
        envelope = match field.as_str() {
            "type" => envelope,
            "id" => envelope.with_id(text()),
            "version" => envelope.version(integer(&value)),
            "correlation_id" => envelope.correlation(text()),
            "causation_id" => envelope.caused_by(text()),
            "attempt" => envelope.with_attempt(integer(&value)),
            "first_seen_ms" => envelope
                .first_seen(DateTime::from_timestamp_millis(value.as_i64().unwrap()).unwrap()),
            "origin" => envelope.with_origin(text()),
            "error" => envelope.with_error(text()),
            "claim" => envelope.with_claim(text()),
            "headers" => headers(&value)
                .into_iter()
                .fold(envelope, |envelope, (name, value)| envelope.header(name, value)),
            _ => panic!("no such field of an envelope: {field}"),
        };
    }
    envelope
}

#[track_caller]
fn assert_envelope(envelope: &Envelope, expected: &Value) {
    for (field, value) in fields(expected) {
        match field.as_str() {
            "id" => assert_text(Some(envelope.id()), &value),
            "type" => assert_text(Some(envelope.message_type()), &value),
            "version" => assert_eq!(i64::from(envelope.schema_version()), value, "version"),
            "correlation_id" => assert_text(Some(envelope.correlation_id()), &value),
            "causation_id" => assert_text(envelope.causation_id(), &value),
            "attempt" => assert_eq!(i64::from(envelope.attempt()), value, "attempt"),
            "first_seen_ms" => assert_eq!(envelope.first_seen_ms(), value.as_i64(), "first seen"),
            "origin" => assert_text(envelope.origin(), &value),
            "error" => assert_text(envelope.error(), &value),
            "claim" => assert_text(envelope.claim(), &value),
            "headers" => assert_eq!(envelope.headers(), &headers(&value)),
            "first_seen" => assert_eq!(envelope.first_seen_ms(), Some(NOW_MS), "first seen is now"),
            _ => panic!("no such field of an envelope: {field}"),
        }
    }
}

pub(super) const NOW_MS: i64 = 1_790_000_000_000;

#[test]
fn envelopes_are_written_as_the_family_writes_them() {
    each("/envelope_write", |case| {
        let envelope = build(&case["build"]);
        envelope.check().unwrap();
        let envelope = envelope.completed(text(&case["publish"], "routing_key"), NOW_MS, None);
        let properties = Properties {
            content_type: Some(Encoder::<()>::content_type(&JsonCodec).to_owned()),
            persistent: case["publish"]["persistent"].as_bool().unwrap_or(true),
            ..Properties::default()
        };
        let properties = properties.carrying(&envelope);
        let expected = &case["expect"];
        assert_text(properties.message_id.as_deref(), &expected["message_id"]);
        assert_text(properties.content_type.as_deref(), &expected["content_type"]);
        assert_eq!(if properties.persistent { 2 } else { 1 }, expected["delivery_mode"]);
        assert_eq!(properties.headers, written(&expected["headers"]));
    });
}

#[test]
fn reserved_application_headers_are_refused() {
    each("/envelope_write_refused", |case| {
        let result = build(&serde_json::json!({ "headers": case["headers"] })).check();
        match text(case, "expect") {
            "ok" => result.unwrap(),
            "error" => assert!(result.unwrap_err().to_string().contains("is reserved")),
            other => panic!("no such expectation: {other}"),
        }
    });
}

#[test]
fn envelopes_are_read_as_the_family_writes_them() {
    each("/envelope_read", |case| {
        let properties = Properties {
            headers: headers(&case["headers"]),
            message_id: case["message_id"].as_str().map(str::to_owned),
            ..Properties::default()
        };
        let now_ms = case["now_ms"].as_i64().unwrap();
        let envelope = Envelope::from_properties(&properties, text(case, "routing_key"), now_ms);
        assert_envelope(&envelope, &case["expect"]);
        let minted = case["expect"]["id"] == "$fresh_uuid";
        assert_eq!(Envelope::has_identity(&properties), !minted);
        if minted {
            assert_eq!(envelope.id(), envelope.correlation_id());
        }
    });
}

#[test]
fn envelopes_are_derived_without_losing_a_field() {
    each("/envelope_derive", |case| {
        let parent = build(&case["from"]);
        let derived = match text(case, "op") {
            "causing(type=invoice.raised)" => {
                parent.causing("invoice.raised").completed("key", NOW_MS, None)
            }
            "next_attempt()" => parent.next_attempt(),
            "with_error('gave up')" => parent.clone().with_error("gave up"),
            other => panic!("no such operation: {other}"),
        };
        assert_envelope(&derived, &case["expect"]);
    });
}

#[test]
fn replays_are_stamped_as_the_contract_says() {
    each("/replay/stamp", |case| {
        let queue = text(case, "queue");
        let attempts = if case["keep_attempts"] == true { Attempts::Keep } else { Attempts::Reset };
        let received = headers(&case["in"]);
        let stamped = ReplayStamp::stamp(received, queue, time(text(case, "now")), attempts);
        assert_eq!(stamped, headers(&case["expect"]));
        for absent in case["expect_absent"].as_array().into_iter().flatten() {
            assert_eq!(stamped.get(absent.as_str().unwrap()), None);
        }
        assert_eq!(case["target"]["exchange"], "");
        assert_text(standard::source_queue_name(queue), &case["target"]["routing_key"]);
    });
}

#[test]
fn every_form_of_replay_time_is_read() {
    each("/replay/read_at", |case| {
        let headers: Headers = [
            (header::REPLAYED_FROM, HeaderValue::from("orders.new.dlq")),
            (header::REPLAYED_AT, header_value(&case["in"])),
        ]
        .into_iter()
        .collect();
        let at = ReplayStamp::read(&headers).unwrap().replayed_at();
        assert_eq!(at.map(|at| at.timestamp_millis()), case["expect_ms"].as_i64());
    });
}

/// Whether a pattern of the vectors (`text/*`, `*+yaml`, `(absent)`) takes a content type.
fn pattern_takes(pattern: &str, content_type: Option<&str>) -> bool {
    match (pattern.split_once('*'), content_type) {
        (_, None) => pattern == "(absent)",
        (None, Some(kind)) => kind == pattern,
        (Some((start, end)), Some(kind)) => kind.starts_with(start) && kind.ends_with(end),
    }
}

/// Content types to try: every pattern of every codec, its `*` filled in, and an absent one.
fn samples(codecs: &Value) -> Vec<Option<String>> {
    let patterns = codecs.as_array().unwrap().iter().flat_map(|codec| {
        codec["reads"].as_array().unwrap().iter().map(|pattern| pattern.as_str().unwrap())
    });
    patterns
        .map(|pattern| match pattern {
            "(absent)" => None,
            _ if pattern.starts_with('*') => Some(pattern.replace('*', "application/vnd.x")),
            _ => Some(pattern.replace('*', "vnd.x")),
        })
        .collect()
}

#[test]
fn codecs_take_the_content_types_of_the_family_and_no_others() {
    /// Codecs that this crate does not have; a new one in the vectors fails this test.
    const ABSENT: [&str; 7] =
        ["yaml", "toml", "xml", "protobuf", "avro (fixed schema)", "avro (registry)", "encrypted"];
    let codecs = vectors("/content_types");
    let samples = samples(&codecs);
    let skipped = std::cell::RefCell::new(Vec::new());
    each("/content_types", |case| {
        let check = |content_type: &str, accepts: &dyn Fn(Option<&str>) -> bool| {
            assert_eq!(content_type, text(case, "writes"));
            for sample in &samples {
                let sample = sample.as_deref();
                let patterns = case["reads"].as_array().unwrap();
                let expected = patterns.iter().any(|p| pattern_takes(p.as_str().unwrap(), sample));
                assert_eq!(accepts(sample), expected, "{sample:?}");
                if let Some(kind) = sample {
                    let decorated = format!(" {} ; charset=utf-8", kind.to_uppercase());
                    assert_eq!(accepts(Some(&decorated)), expected, "{decorated:?}");
                }
            }
        };
        match text(case, "codec") {
            "json" => check(Encoder::<()>::content_type(&JsonCodec), &|kind| {
                Decoder::<()>::accepts(&JsonCodec, kind)
            }),
            "string" => check(TextCodec.content_type(), &|kind| TextCodec.accepts(kind)),
            "bytes" => check(BytesCodec.content_type(), &|kind| BytesCodec.accepts(kind)),
            other => skipped.borrow_mut().push(other.to_owned()),
        }
    });
    assert_eq!(skipped.into_inner(), ABSENT);
}

#[test]
fn only_the_exact_prefix_is_reserved() {
    each("/reserved_prefix", |case| {
        assert_eq!(is_reserved(text(case, "name")), case["reserved"]);
    });
}
