//! Runs the family's test vectors for both slip forms.

use super::{
    vectors::{NOW_MS, assert_text, each, headers, parts, text, time, vectors},
    *,
};
use crate::topology::standard;

/// Reads the header as a message carries it.
fn itinerary(text: &str) -> Result<Itinerary, InvalidItinerary> {
    let headers = [(Itinerary::HEADER, text)].into_iter().collect();
    Ok(Itinerary::from(&headers)?.unwrap())
}

#[test]
fn itineraries_are_written_to_the_canonical_text() {
    assert_eq!(vectors("/itinerary/header"), Itinerary::HEADER);
    each("/itinerary/encode", |case| {
        assert_eq!(case["done"], serde_json::json!([]));
        let steps = case["steps"].as_array().unwrap();
        let route = steps.iter().fold(Itinerary::new(), |route, stop| {
            let name = stop["name"].as_str().unwrap_or_default();
            route.then_named(name, text(stop, "exchange"), text(stop, "routing_key"))
        });
        assert_eq!(route.to_header(), text(case, "expect"));
    });
    each("/itinerary/advance", |case| {
        let advanced = itinerary(text(case, "in")).unwrap().advance(time(text(case, "at")));
        assert_eq!(advanced.to_header(), text(case, "expect"));
    });
}

#[test]
fn itineraries_of_every_member_are_read() {
    each("/itinerary/decode", |case| {
        let route = itinerary(text(case, "in")).unwrap();
        let expected = &case["expect"];
        assert_eq!(route.remaining().len(), expected["remaining"]);
        assert_eq!(route.done().len(), expected["done"]);
        assert_eq!(route.is_finished(), expected["finished"]);
        assert_text(route.next().map(ToString::to_string).as_deref(), &expected["current"]);
        assert_eq!(route.to_header(), text(case, "re_encode"));
    });
    each("/itinerary/decode_fatal", |case| {
        assert!(itinerary(text(case, "in")).is_err());
    });
}

#[test]
fn route_trios_are_read_leniently() {
    assert_eq!(
        vectors("/routing_slip/headers"),
        serde_json::json!([header::ROUTE, header::ROUTE_POSITION, header::ROUTE_ID])
    );
    each("/routing_slip/decode", |case| {
        let slip = RoutingSlip::read(&headers(&case["in"]));
        let expected = &case["expect"];
        assert_eq!(slip.is_none(), expected.is_null());
        let Some(slip) = slip else { return };
        assert_eq!(serde_json::json!(slip.steps()), expected["steps"]);
        assert_eq!(slip.position(), expected["position"]);
        assert_text(Some(slip.run_id()), &expected["run_id"]);
        assert_text(slip.current(), &expected["current"]);
        assert_text(slip.next(), &expected["next"]);
        assert_eq!(slip.is_finished(), expected["finished"]);
    });
}

#[test]
fn route_trios_advance_by_one_step() {
    each("/routing_slip/advance", |case| {
        let advanced = RoutingSlip::read(&headers(&case["in"])).unwrap().advance();
        if case["expect"] == "run complete; publish nothing" {
            assert!(advanced.is_finished());
            return;
        }
        let mut written = Headers::new();
        advanced.write(&mut written);
        assert_eq!(written, headers(&case["expect"]));
        let hop = &case["hop"];
        assert_eq!(hop["exchange"], hop["pipeline"]);
        assert_text(advanced.current(), &hop["routing_key"]);
        let queue = standard::step_queue_name(text(hop, "pipeline"), text(hop, "routing_key"));
        assert_eq!(queue, text(hop, "queue"));
    });
}

#[test]
fn an_itinerary_wins_over_a_route_trio() {
    each("/routing_slip/precedence", |case| {
        let properties = Properties { headers: headers(&case["in"]), ..Properties::default() };
        let mut envelope = Envelope::from_properties(&properties, "key", NOW_MS);
        assert_eq!(text(case, "expect_form"), "itinerary");
        assert!(matches!(Slip::of(&envelope), Ok(Some(Slip::Itinerary(_)))));
        envelope = envelope.without_header(Itinerary::HEADER);
        assert!(matches!(Slip::of(&envelope), Ok(Some(Slip::Route(_)))));
    });
}

#[test]
fn step_names_are_ascii_and_never_break_a_route() {
    let part = "/routing_slip/step_names";
    parts(part, &["valid", "invalid", "rust_also_refuses", "note", "source"]);
    each("/routing_slip/step_names/valid", |name| {
        check_step_name(name.as_str().unwrap()).unwrap();
    });
    for list in ["invalid", "rust_also_refuses"] {
        each(&format!("{part}/{list}"), |name| {
            check_step_name(name.as_str().unwrap()).unwrap_err();
        });
    }
}
