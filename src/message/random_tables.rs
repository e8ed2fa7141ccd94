//! Properties that hold for every header table, however malformed.
//!
//! `ACEMQ_FUZZ_CASES` is the number of cases of each property (500 by default, and fewer where one
//! costs more); the long form has a million.

use bytes::Bytes;
use chrono::DateTime;
use proptest::{collection::vec, prelude::*};

use super::{
    header::{is_broker_owned, is_reserved},
    *,
};

/// How many cases a property is tried with, where the short form has `few`.
pub(crate) fn cases(few: u32) -> ProptestConfig {
    let wanted = std::env::var("ACEMQ_FUZZ_CASES").ok();
    let cases = wanted.map(|text| text.parse().expect("ACEMQ_FUZZ_CASES is a number"));
    // What failed is printed; a file beside the sources would be found by nobody.
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases.unwrap_or(few)) }
}

/// Names that mean something to this crate or to the broker, and names that do not.
fn name() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        header::ID,
        header::TYPE,
        header::VERSION,
        header::CORRELATION,
        header::CAUSATION,
        header::ATTEMPT,
        header::FIRST_SEEN,
        header::ORIGIN,
        header::ERROR,
        header::CLAIM,
        header::ROUTE,
        header::ROUTE_POSITION,
        header::ROUTE_ID,
        header::ROUTING_SLIP,
        header::REPLAYED_FROM,
        header::REPLAYED_AT,
        header::REPLAY_COUNT,
        header::LEGACY_REPLAY_COUNT,
        "x-acemq-",
        "x-acemq-future",
        "X-AceMQ-Id",
        "x-death",
        "x-first-death-queue",
        "x-delivery-count",
        "CC",
        "BCC",
        "x-match",
        "acemq-reply-to",
        header::RESPONDER_ERROR,
        header::EXCEPTION_MESSAGE,
        header::ORIGINAL_EXCHANGE,
        "traceparent",
        "",
    ]);
    prop_oneof![4 => known.prop_map(str::to_owned), 1 => "[a-z-]{1,12}", 1 => any::<String>()]
}

/// Text that comes close to what the readers look for.
pub(super) fn suggestive_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        any::<String>(),
        " ?-?[0-9]{1,25} ?",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?(Z|\\+[0-9]{2}:[0-9]{2})",
        "([a-z]{0,3} ?,){0,4}",
        r#"\{"steps":(null|\[\]|3|\[\{"exchange":"e"\}\])(,"done":(null|\[null\]))?\}?"#,
    ]
}

pub(crate) fn value() -> impl Strategy<Value = HeaderValue> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(HeaderValue::Bool),
        any::<i32>().prop_map(HeaderValue::Int),
        any::<i64>().prop_map(HeaderValue::Long),
        prop::num::f64::ANY.prop_map(HeaderValue::Double),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, value)| HeaderValue::Decimal { scale, value }),
        suggestive_text().prop_map(HeaderValue::Text),
        suggestive_text().prop_map(|text| HeaderValue::Bytes(text.into())),
        vec(any::<u8>(), 0..12).prop_map(|bytes| HeaderValue::Bytes(Bytes::from(bytes))),
        any::<u64>().prop_map(HeaderValue::Timestamp),
        Just(HeaderValue::Null),
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(HeaderValue::List),
            vec((name(), inner), 0..4).prop_map(|table| HeaderValue::Table(table_of(table))),
        ]
    })
}

fn table_of(headers: Vec<(String, HeaderValue)>) -> Headers {
    headers.into_iter().collect()
}

pub(crate) fn table() -> impl Strategy<Value = Headers> {
    vec((name(), value()), 0..16).prop_map(table_of)
}

/// Every property that a peer may set, with anything in it.
pub(crate) fn received() -> impl Strategy<Value = Properties> {
    let text = || prop::option::of(suggestive_text());
    let texts = (text(), text(), text(), text(), text(), text(), text());
    let numbers = (any::<Option<u8>>(), any::<Option<u64>>(), any::<bool>());
    (table(), text(), texts, numbers).prop_map(|(headers, message_id, texts, numbers)| {
        let (content_type, content_encoding, correlation_id, reply_to, kind, app_id, expiration) =
            texts;
        let (priority, timestamp, persistent) = numbers;
        Properties {
            headers,
            message_id,
            content_type,
            content_encoding,
            persistent,
            priority,
            correlation_id,
            reply_to,
            expiration,
            timestamp,
            kind,
            user_id: None,
            app_id,
        }
    })
}

/// The application's part of a table, as a republish carries it.
fn carried(headers: &Headers) -> Headers {
    let mut carried = headers.clone();
    carried.retain(|name| !is_reserved(name) && !is_broker_owned(name));
    carried
}

/// Values are compared as text, since NaN does not equal itself.
fn shown(value: impl std::fmt::Debug) -> String {
    format!("{value:?}")
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn any_table_is_read_and_what_is_written_reads_the_same(
        properties in received(),
        routing_key in "[a-z.]{0,8}",
        now_ms in any::<i64>(),
    ) {
        let first = Envelope::from_properties(&properties, &routing_key, now_ms);
        prop_assert!(!first.id().is_empty() && !first.correlation_id().is_empty());
        prop_assert!(first.schema_version() >= 1 && first.attempt() >= 1);
        let _ = (first.first_seen_at(), first.error(), first.claim(), first.origin());

        let copy = Properties::default().carrying(&first);
        let second = Envelope::from_properties(&copy, "another.key", now_ms.wrapping_add(1));
        let mut expected = first.clone();
        for name in ["x-death", "x-first-death-queue", "x-delivery-count"] {
            expected = expected.without_header(name);
        }
        if first.message_type().is_empty() {
            prop_assert_eq!(second.message_type(), "message");
        } else {
            prop_assert_eq!(shown(&second), shown(&expected));
        }

        let copy = Properties::default().carrying(&second);
        let third = Envelope::from_properties(&copy, "a.third.key", now_ms.wrapping_add(2));
        prop_assert_eq!(shown(third), shown(second));
    }

    #[test]
    fn application_headers_survive_and_unknown_engine_headers_are_carried_unseen(properties in received()) {
        let envelope = Envelope::from_properties(&properties, "key", 0);
        prop_assert!(envelope.headers().iter().all(|(name, _)| !is_reserved(name)));
        prop_assert!(envelope.check().is_ok());
        prop_assert!(envelope.causing("next").to_headers().iter().all(|(name, _)| header::is_known(name)));

        let written = envelope.to_headers();
        prop_assert_eq!(shown(carried(&written)), shown(carried(&properties.headers)));
        for (name, value) in written.iter().filter(|(name, _)| is_reserved(name)) {
            if !header::is_known(name) {
                prop_assert_eq!(shown(value), shown(properties.headers.get(name).unwrap()));
                continue;
            }
            let plain = value.as_i64().is_some() || value.as_str().is_some_and(|t| !t.is_empty());
            prop_assert!(plain, "{name} is written as {value:?}");
        }
    }

    #[test]
    fn slips_and_stamps_are_read_from_any_table(properties in received()) {
        let headers = &properties.headers;
        if let Some(slip) = RoutingSlip::read(headers) {
            prop_assert!(slip.position() <= slip.steps().len());
            let _ = (slip.current(), slip.next(), slip.advance());
            let mut written = Headers::new();
            slip.write(&mut written);
            prop_assert_eq!(RoutingSlip::read(&written), Some(slip));
        }
        if let Ok(Some(route)) = Itinerary::from(headers) {
            let stops = route.remaining().len() + route.done().len();
            let advanced = route.advance(DateTime::UNIX_EPOCH);
            prop_assert_eq!(advanced.remaining().len() + advanced.done().len(), stops);
        }
        let _ = Slip::of(&Envelope::from_properties(&properties, "key", 0));
        let _ = ReplayStamp::read(headers);
    }

    #[test]
    fn a_replay_of_any_message_reads_back_and_keeps_the_rest(
        headers in table(),
        at in 0_i64..4_102_444_800_000,
    ) {
        let at = DateTime::from_timestamp_millis(at).unwrap();
        let before = ReplayStamp::read(&headers).map_or(0, |stamp| stamp.count());
        let stamped = ReplayStamp::stamp(headers.clone(), "q.dlq", at, Attempts::Reset);
        let stamp = ReplayStamp::read(&stamped).unwrap();
        prop_assert_eq!(stamp.replayed_from(), "q.dlq");
        prop_assert_eq!(stamp.replayed_at().unwrap().timestamp(), at.timestamp());
        prop_assert!(stamp.count() > before.min(i64::from(i32::MAX) - 1));

        let others = |headers: &Headers| {
            let mut headers = headers.clone();
            headers.retain(|name| {
                !name.contains("replay")
                    && !is_broker_owned(name)
                    && name != header::ATTEMPT
                    && name != header::ERROR
            });
            shown(headers)
        };
        prop_assert_eq!(others(&stamped), others(&headers));
    }

    #[test]
    fn itineraries_read_back_what_they_write(
        stops in vec((any::<String>(), any::<String>(), any::<String>()), 0..6),
        done in 0_usize..6,
    ) {
        let route = stops.iter().fold(Itinerary::new(), |route, (name, exchange, key)| {
            route.then_named(name, exchange, key)
        });
        let route = (0..done).fold(route, |route, _| route.advance(DateTime::UNIX_EPOCH));
        let headers = [(Itinerary::HEADER, route.to_header())].into_iter().collect();
        prop_assert_eq!(Itinerary::from(&headers), Ok(Some(route)));
    }
}
