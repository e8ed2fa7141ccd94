//! Runs the family's retry vectors, and the topology that goes with them.

use std::time::Duration;

use serde_json::Value;

use super::retry_policy::{RetryPolicy, rung_for};
use crate::{
    clock::millis,
    message::{
        HeaderValue, Headers,
        vectors::{each, parts, vectors},
    },
    topology::{Binding, Exchange, Queue, standard},
};

fn ms(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap())
}

fn all_ms(durations: &[Duration]) -> Value {
    durations.iter().map(|delay| millis(*delay)).collect()
}

/// Builds a policy of `retry/schedules`.
fn policy(fields: &Value) -> RetryPolicy {
    let attempts = u32::try_from(fields["max_attempts"].as_u64().unwrap()).unwrap();
    let mut policy = match fields["kind"].as_str().unwrap() {
        "none" => RetryPolicy::none(),
        "fixed" => RetryPolicy::fixed(attempts, ms(&fields["delay_ms"])),
        "exponential" => {
            RetryPolicy::exponential(attempts, ms(&fields["initial_ms"]), ms(&fields["max_ms"]))
                .multiplier(fields["multiplier"].as_f64().unwrap())
        }
        other => panic!("no such kind of policy: {other}"),
    };
    assert_eq!(policy.max_attempts(), attempts);
    policy = policy.jitter(fields["jitter"].as_f64().unwrap());
    match fields.get("broker_threshold_ms") {
        Some(threshold) => policy.broker_threshold(ms(threshold)),
        None => policy,
    }
}

/// Finds a policy by its name in the vectors, an age limit in `+giveUpAfter(..)` included.
pub(crate) fn named_policy(name: &str) -> RetryPolicy {
    let (name, limit) = name.split_once('+').unwrap_or((name, ""));
    let schedules = vectors("/retry/schedules");
    let schedule = schedules.as_array().unwrap().iter().find(|schedule| schedule["name"] == name);
    let policy = policy(&schedule.unwrap_or_else(|| panic!("no policy {name}"))["policy"]);
    match limit.strip_prefix("giveUpAfter(").and_then(|limit| limit.strip_suffix(')')) {
        Some(limit) => policy.max_age(Duration::from_millis(limit.parse().unwrap())),
        None => policy,
    }
}

#[test]
fn every_part_of_the_retry_vectors_is_run() {
    let here = ["schedules", "decisions", "threshold", "jitter", "naming", "rung_lookup"];
    let in_decide = ["hop", "error_prefixes"];
    parts("/retry", &[&here[..], &in_decide[..]].concat());
}

#[test]
fn schedules_and_their_rungs_are_the_familys() {
    each("/retry/schedules", |case| {
        let policy = policy(&case["policy"]);
        policy.validate().unwrap();
        let delays: Vec<Duration> =
            (1..).map_while(|attempt| policy.delay_after(attempt)).collect();
        assert_eq!(all_ms(&delays), case["delays_ms"]);
        assert_eq!(all_ms(&policy.rungs()), case["rungs_ms"]);
    });
}

#[test]
fn attempts_and_age_end_the_retries() {
    each("/retry/decisions", |case| {
        let policy = named_policy(case["policy"].as_str().unwrap());
        let attempt = u32::try_from(case["attempt"].as_u64().unwrap()).unwrap();
        let age = case["age_ms"].as_u64().map(Duration::from_millis);
        assert_eq!(policy.retries(attempt, age), case["retries"]);
    });
}

#[test]
fn long_waits_go_to_the_broker() {
    each("/retry/threshold", |case| {
        let policy = RetryPolicy::default().broker_threshold(ms(&case["threshold_ms"]));
        assert_eq!(policy.waits_in_broker(ms(&case["delay_ms"])), case["in_broker"]);
    });
}

#[test]
fn waits_in_the_consumer_spread_in_both_directions() {
    let jitter = vectors("/retry/jitter");
    let known = ["factor", "min_multiplier", "max_multiplier", "both_directions", "source"];
    parts("/retry/jitter", &[&known[..], &["consumer_waits", "broker_waits", "floor_ms"]].concat());
    assert_eq!(jitter["both_directions"], true);
    assert_eq!(jitter["consumer_waits"], true);

    let policy = RetryPolicy::default();
    assert_eq!(policy, policy.clone().jitter(jitter["factor"].as_f64().unwrap()));
    let spread = |random| policy.jittered(Duration::from_secs(10), random).as_secs_f64() / 10.0;
    let expected = [&jitter["min_multiplier"], &jitter["max_multiplier"]];
    for (random, expected) in [0.0, 1.0].into_iter().zip(expected) {
        assert!((spread(random) - expected.as_f64().unwrap()).abs() < 1e-9, "{}", spread(random));
    }
    assert!((spread(0.5) - 1.0).abs() < 1e-9);
    assert_eq!(policy.jittered(Duration::ZERO, 0.0), ms(&jitter["floor_ms"]));
    assert_eq!(policy.clone().jitter(1.0).jittered(Duration::MAX, 1.0), Duration::MAX);

    // A wait in the broker is a queue's name and TTL: exact.
    assert_eq!(jitter["broker_waits"], false);
    let patient = named_policy("topology-example");
    assert_eq!(patient.rungs(), patient.clone().jitter(0.0).rungs());
}

#[test]
fn rungs_have_the_names_of_the_family() {
    each("/retry/naming", |case| {
        let name =
            standard::retry_rung_name(case["queue"].as_str().unwrap(), ms(&case["delay_ms"]));
        assert_eq!(name, case["rung"]);
    });
}

#[test]
fn a_delay_without_a_rung_takes_the_next_longer_or_the_longest() {
    each("/retry/rung_lookup", |case| {
        let rungs: Vec<Duration> = case["rungs_ms"].as_array().unwrap().iter().map(ms).collect();
        assert_eq!(rung_for(&rungs, ms(&case["delay_ms"])), Some(ms(&case["expect_ms"])));
    });
    assert_eq!(rung_for(&[], Duration::from_secs(1)), None);
}

/// Arguments as they are declared: integers are always 64 bits wide.
fn arguments(value: &Value) -> Headers {
    let arguments = value.as_object().unwrap().iter();
    arguments
        .map(|(name, value)| {
            let text = || HeaderValue::from(value.as_str().unwrap());
            (name.as_str(), value.as_i64().map_or_else(text, HeaderValue::Long))
        })
        .collect()
}

fn queue(value: &Value, kind: &str) -> Queue {
    let name = value["name"].as_str().or(value["queue"].as_str()).unwrap();
    let mut queue = match kind {
        "classic" => Queue::classic(name),
        "quorum" => Queue::quorum(name),
        other => panic!("no such kind of queue: {other}"),
    };
    assert_eq!(value["durable"], true);
    queue.arguments = arguments(&value["arguments"]);
    queue
}

#[test]
fn the_retry_topology_is_declared_to_the_argument() {
    let expected = vectors("/topology/retry_topology");
    let known = ["queue", "policy", "source", "exchanges", "queues", "bindings", "note"];
    parts("/topology/retry_topology", &known);
    let name = expected["queue"].as_str().unwrap();
    let policy = named_policy(expected["policy"].as_str().unwrap());
    let mut declared = standard::set_aside_queues(name).merge(policy.topology(name));
    declared.exchanges.dedup();

    let list = |part: &str| expected[part].as_array().unwrap().clone();
    let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
    let exchanges: Vec<Exchange> = list("exchanges")
        .iter()
        .map(|exchange| {
            assert_eq!((&exchange["type"], &exchange["durable"]), (&"direct".into(), &true.into()));
            Exchange::direct(text(exchange, "name"))
        })
        .collect();
    let queues: Vec<Queue> =
        list("queues").iter().map(|value| queue(value, &text(value, "type"))).collect();
    let bindings: Vec<Binding> = list("bindings")
        .iter()
        .map(|b| Binding::new(text(b, "queue"), text(b, "exchange"), text(b, "routing_key")))
        .collect();
    assert_eq!(declared.exchanges, exchanges);
    assert_eq!(declared.queues, queues);
    assert_eq!(declared.bindings, bindings);
    declared.check().unwrap();
}

#[test]
fn a_source_queue_dead_letters_as_the_family_does() {
    let expected = vectors("/topology/source_queue_with_dead_letter");
    let known = ["queue", "source", "default_type", "durable", "arguments"];
    parts("/topology/source_queue_with_dead_letter", &known);
    let declared = Queue::new(expected["queue"].as_str().unwrap());
    assert_eq!(declared, queue(&expected, expected["default_type"].as_str().unwrap()));
}
