//! `acemq doctor`.

use serde_json::Value;

use crate::{
    acemq,
    support::{amqp_url, management_url},
};

fn check<'a>(checks: &'a Value, what: &str) -> &'a Value {
    let checks = checks.as_array().unwrap();
    checks.iter().find(|check| check["what"] == what).unwrap_or_else(|| panic!("{checks:?}"))
}

#[test]
fn a_sound_broker_is_found_sound() {
    let (broker, api) = (amqp_url(), management_url());
    // Dead letters of other tests may be there: they are a finding, and no fault of the rest.
    let run = acemq(&["--broker", &broker, "--management", &api, "doctor", "--json"]);
    let checks = run.json();
    for what in ["broker", "configure", "read", "write", "round trip", "broker version"] {
        assert_eq!(check(&checks, what)["is_good"], true, "{checks}");
    }
    acemq(&["--broker", &broker, "doctor"]).ends_with(0);
}

#[test]
fn what_is_wrong_is_told_with_advice() {
    let nobody = amqp_url().replace("guest:guest", "nobody:wrong");
    let run = acemq(&["--broker", &nobody, "doctor", "--json"]).ends_with(3);
    let checks = run.json();
    let broker = check(&checks, "broker");
    assert_eq!(broker["is_good"], false);
    assert!(broker["advice"].as_str().unwrap().contains("password"), "{checks}");

    let empty = std::env::temp_dir().join(format!("acemq-{}.db", uuid::Uuid::new_v4().simple()));
    let url = format!("sqlite:{}?mode=rwc", empty.display());
    let checks = acemq(&["--database", &url, "doctor", "--json"]).ends_with(3).json();
    assert_eq!(check(&checks, "database")["is_good"], true);
    assert!(check(&checks, "outbox table")["advice"].as_str().unwrap().contains("migrate"));
    std::fs::remove_file(empty).unwrap();
}

#[test]
fn a_body_over_the_limit_is_told() {
    let (broker, size) = (amqp_url(), (200 << 20).to_string());
    let run = acemq(&["--broker", &broker, "doctor", "--message-size", &size, "--json"]);
    let checks = run.ends_with(3).json();
    assert_eq!(check(&checks, "write")["is_good"], false, "{checks}");
}
