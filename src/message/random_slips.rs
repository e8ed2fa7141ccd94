//! Properties that hold for every itinerary text and every route, however malformed.

use chrono::DateTime;
use proptest::{collection::vec, prelude::*};

use super::{
    random_tables::{cases, suggestive_text, value},
    *,
};

/// A text that is an itinerary, with some of its bytes replaced, added, removed or doubled.
fn nearly_an_itinerary() -> impl Strategy<Value = Vec<u8>> {
    let name = || prop_oneof!["[a-z.]{0,4}", any::<String>()];
    let route = (vec((name(), name(), name()), 0..4), 0_usize..4).prop_map(|(stops, done)| {
        let route = stops.iter().fold(Itinerary::new(), |route, (name, exchange, key)| {
            route.then_named(name, exchange, key)
        });
        (0..done).fold(route, |route, _| route.advance(DateTime::UNIX_EPOCH)).to_header()
    });
    let change = (any::<prop::sample::Index>(), 0_u8..5, interesting_bytes());
    (route, vec(change, 0..4)).prop_map(|(text, changes)| {
        let mut text = text.into_bytes();
        for (at, how, bytes) in changes {
            let at = at.index(text.len() + 1);
            match how {
                0 => drop(text.splice(at..at, bytes)),
                1 => drop(text.splice(at..(at + bytes.len()).min(text.len()), bytes)),
                2 => drop(text.drain(at..(at + 1).min(text.len()))),
                3 => text.truncate(at),
                _ => text.extend_from_within(at..),
            }
        }
        text
    })
}

fn interesting_bytes() -> impl Strategy<Value = Vec<u8>> {
    let parts = [
        "null",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\u0000",
        "\\ud800",
        "1e999",
        "-0",
        "true",
        "{\"steps\":[]}",
        "\"steps\"",
        "\"done\"",
        "\"name\":3",
        "\"completedAt\":\"never\"",
        "\"routingKey\":{}",
        "\u{feff}",
        "[[[[[[[[",
    ];
    prop_oneof![
        3 => prop::sample::select(parts.to_vec()).prop_map(|part| part.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..6),
    ]
}

/// Reads a text in every form in which a peer can send it.
fn read(text: &[u8]) -> Vec<Result<Option<Itinerary>, InvalidItinerary>> {
    let mut forms = vec![HeaderValue::Bytes(text.to_vec().into())];
    if let Ok(text) = std::str::from_utf8(text) {
        forms.push(HeaderValue::from(text));
    }
    let read = |form| Itinerary::from(&[(Itinerary::HEADER, form)].into_iter().collect());
    forms.into_iter().map(read).collect()
}

/// What is read can be written, read again, and worked off to its end.
fn check(route: &Itinerary) -> Result<(), TestCaseError> {
    let headers = [(Itinerary::HEADER, route.to_header())].into_iter().collect();
    prop_assert_eq!(Itinerary::from(&headers), Ok(Some(route.clone())));
    let stops = route.remaining().len() + route.done().len();
    let mut route = route.clone();
    for _ in 0..route.remaining().len() {
        prop_assert!(!route.is_finished() && route.next().is_some());
        route = route.advance(DateTime::UNIX_EPOCH);
        prop_assert_eq!(route.remaining().len() + route.done().len(), stops);
    }
    prop_assert!(route.is_finished());
    Ok(())
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn any_bytes_are_an_itinerary_or_an_error(bytes in vec(any::<u8>(), 0..64)) {
        for route in read(&bytes).into_iter().flatten().flatten() {
            check(&route)?;
        }
    }

    #[test]
    fn a_damaged_itinerary_is_read_whole_or_refused(text in nearly_an_itinerary()) {
        for read in read(&text) {
            match read {
                Ok(Some(route)) => check(&route)?,
                Ok(None) => {}
                Err(error) => prop_assert!(error.to_string().len() < 2000, "{error}"),
            }
        }
    }

    #[test]
    fn nesting_of_any_depth_is_no_itinerary(depth in 0_usize..100_000, open in "[\\[{]") {
        let text = format!("{{\"steps\":{}", open.repeat(depth));
        prop_assert!(read(text.as_bytes()).into_iter().all(|read| !matches!(read, Ok(Some(_)))));
    }

    #[test]
    fn the_three_headers_of_a_route_are_a_route_or_none(
        route in prop_oneof![
            "([a-z]{0,3} ?,){0,4}[a-z]{0,3}".prop_map(HeaderValue::Text),
            suggestive_text().prop_map(HeaderValue::Text),
            value(),
        ],
        position in prop_oneof![(-2_i64..6).prop_map(HeaderValue::Long), value()],
        id in prop_oneof![Just(HeaderValue::from("run")), value()],
        missing in 0_usize..6,
    ) {
        let mut headers = Headers::new();
        let trio = [
            (header::ROUTE, route),
            (header::ROUTE_POSITION, position),
            (header::ROUTE_ID, id),
        ];
        for (number, (name, value)) in trio.into_iter().enumerate() {
            if number != missing {
                headers.insert(name, value);
            }
        }
        if let Some(slip) = RoutingSlip::read(&headers) {
            prop_assert!(!slip.steps().is_empty() && slip.position() <= slip.steps().len());
            let mut written = Headers::new();
            slip.write(&mut written);
            prop_assert_eq!(RoutingSlip::read(&written), Some(slip.clone()));
            let left = slip.steps().len() - slip.position();
            let end = (0..=left).fold(slip, |slip, _| slip.advance());
            prop_assert!(end.is_finished() && end.current().is_none());
        }
    }
}
