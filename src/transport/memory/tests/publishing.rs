//! Routing, returns and refusals.

use super::{Fixture, message, text, to};
use crate::{
    error::Error,
    message::{HeaderValue, Headers, Properties},
    topology::{Exchange, Queue, Topology},
};

fn routes(exchange: Exchange, bindings: &[(&str, &str)]) -> Topology {
    let name = exchange.name.clone();
    bindings.iter().fold(Topology::new().exchange(exchange), |topology, (queue, key)| {
        topology.queue(Queue::classic(*queue)).bind(*queue, name.as_str(), *key)
    })
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_exchange_routes_by_its_own_rule() {
    let f = Fixture::new().await;
    let bindings = [("one", "a.b"), ("two", "a.*"), ("two", "a.#"), ("three", "c")];
    for exchange in [Exchange::direct("d"), Exchange::topic("t"), Exchange::fanout("f")] {
        f.link.declare(&routes(exchange, &bindings)).await.unwrap();
    }

    for (exchange, body) in [("d", "direct"), ("t", "topic"), ("f", "fanout")] {
        f.link.publish(to(exchange, "a.b", body)).await.unwrap();
    }

    assert_eq!(f.ready("one"), ["direct", "topic", "fanout"]);
    assert_eq!(f.ready("two"), ["topic", "fanout"], "one copy, however many bindings match");
    assert_eq!(f.ready("three"), ["fanout"]);
}

#[tokio::test(start_paused = true)]
async fn a_mandatory_message_without_a_queue_is_returned() {
    let f = Fixture::new().await;

    let returned = f.link.publish(to("amq.topic", "nowhere", "x")).await.unwrap_err();
    let Error::Unroutable { exchange, routing_key, reason } = returned else { panic!() };
    assert_eq!((exchange.as_str(), routing_key.as_str()), ("amq.topic", "nowhere"));
    assert_eq!(reason, "312 NO_ROUTE");

    let mut optional = message("nowhere", "x");
    optional.mandatory = false;
    f.link.publish(optional).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_missing_exchange_is_told_in_rabbitmqs_words() {
    let f = Fixture::new().await;
    let Err(Error::NotFound { reason }) = f.link.publish(to("nope", "k", "x")).await else {
        panic!()
    };
    assert_eq!(reason, "NOT_FOUND - no exchange 'nope' in vhost '/'");
}

#[tokio::test(start_paused = true)]
async fn body_and_properties_arrive_verbatim() {
    let f = Fixture::with_queue(Queue::quorum("q")).await;
    let mut outgoing = message("q", "");
    outgoing.body = vec![0, 159, 146, 150].into();
    outgoing.properties = Properties {
        headers: Headers::from_iter([
            ("int", HeaderValue::Int(7)),
            ("long", HeaderValue::Long(7)),
            ("list", HeaderValue::List(vec![HeaderValue::Null, HeaderValue::Double(0.5)])),
        ]),
        message_id: Some("id".into()),
        content_type: Some("type".into()),
        content_encoding: Some("encoding".into()),
        persistent: false,
        priority: Some(3),
        correlation_id: Some("correlation".into()),
        reply_to: Some("reply".into()),
        expiration: Some("60000".into()),
        timestamp: Some(1),
        kind: Some("kind".into()),
        user_id: Some("user".into()),
        app_id: Some("app".into()),
    };

    f.link.publish(outgoing.clone()).await.unwrap();
    let mut consumer = super::consume(&f.link, "q", 1).await;
    let got = super::sent(&mut consumer).remove(0);

    assert_eq!(got.properties, outgoing.properties);
    assert_eq!(got.body, outgoing.body);
    assert_eq!((got.exchange.as_str(), got.routing_key.as_str()), ("", "q"));
}

#[tokio::test(start_paused = true)]
async fn an_expiration_that_is_not_a_number_of_milliseconds_is_refused() {
    let f = Fixture::with_queue(Queue::classic("q")).await;
    for (expiration, problem) in [
        ("", "no_integer"),
        ("abc", "no_integer"),
        (" 5", "no_integer"),
        ("-", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", "{leftover_string,\".5\"}"),
        ("315360000001", "{value_too_large,315360000001}"),
        ("99999999999999999999", "{value_too_large,99999999999999999999}"),
    ] {
        // The broker looks at it before it looks for a queue.
        for queue in ["q", "nowhere"] {
            let refused = f.link.publish(super::expiring(queue, "x", expiration)).await;
            let Err(Error::BrokerRefused { code: 406, reason }) = refused else {
                panic!("`{expiration}`: {refused:?}")
            };
            let wanted =
                format!("PRECONDITION_FAILED - invalid expiration '{expiration}': {problem}");
            assert_eq!(reason, wanted);
        }
    }
    for expiration in ["315360000000", "+5000", "0070000"] {
        f.link.publish(super::expiring("q", expiration, expiration)).await.unwrap();
    }
    assert_eq!(f.ready("q").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn cc_and_bcc_are_routing_keys_too_and_bcc_is_taken_off() {
    let f = Fixture::new().await;
    for queue in ["one", "two", "three"] {
        f.declare(Queue::classic(queue)).await;
    }
    let keys = |key: &str| HeaderValue::List(vec![key.into(), HeaderValue::Int(1)]);
    let mut outgoing = message("one", "x");
    outgoing.properties.headers = Headers::from_iter([("CC", keys("two")), ("BCC", keys("three"))]);

    f.link.publish(outgoing.clone()).await.unwrap();

    for queue in ["one", "two", "three"] {
        let (_, properties, body) = f.broker.messages(queue).remove(0);
        assert_eq!(text(&body), "x");
        assert!(properties.headers.get("CC").is_some() && properties.headers.get("BCC").is_none());
    }
    outgoing.properties.headers.insert("CC", "two");
    let refused = f.link.publish(outgoing).await;
    assert!(matches!(refused, Err(Error::BrokerRefused { code: 406, .. })), "{refused:?}");
}
