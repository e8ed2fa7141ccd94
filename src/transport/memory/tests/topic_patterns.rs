//! Which keys a topic pattern takes: the table was written by RabbitMQ 3.10.8.

use super::super::topic::matches;

const KEYS: [&str; 22] = [
    "", "a", "b", "a.b", "a..b", ".", "..", "a.", ".b", "a.b.c", "a.a.b", "b.a", "a.b.b",
    "a.x.y.b", "a.b.c.b", "x.a.y", "*", "#", "a.*", "a.#", "a#", "xa",
];

/// Patterns with the keys they take; the ones that take all are in their own test.
#[rustfmt::skip]
const TAKEN: [(&str, &[&str]); 24] = [
    ("", &[""]),
    ("*", &["a", "b", "*", "#", "a#", "xa"]),
    ("a", &["a"]),
    ("a.b", &["a.b"]),
    ("a.#", &["a", "a.b", "a..b", "a.", "a.b.c", "a.a.b", "a.b.b", "a.x.y.b", "a.b.c.b", "a.*", "a.#"]),
    ("#.b", &["b", "a.b", "a..b", ".b", "a.a.b", "a.b.b", "a.x.y.b", "a.b.c.b"]),
    ("a.#.b", &["a.b", "a..b", "a.a.b", "a.b.b", "a.x.y.b", "a.b.c.b"]),
    ("*.b", &["a.b", ".b"]),
    ("a.*", &["a.b", "a.", "a.*", "a.#"]),
    ("a.*.b", &["a..b", "a.a.b", "a.b.b"]),
    ("*.*", &["a.b", ".", "a.", ".b", "b.a", "a.*", "a.#"]),
    ("#.*.#.*", &["a.b", "a..b", ".", "..", "a.", ".b", "a.b.c", "a.a.b", "b.a", "a.b.b", "a.x.y.b", "a.b.c.b", "x.a.y", "a.*", "a.#"]),
    ("*.*.*", &["a..b", "..", "a.b.c", "a.a.b", "a.b.b", "x.a.y"]),
    ("#.a.#", &["a", "a.b", "a..b", "a.", "a.b.c", "a.a.b", "b.a", "a.b.b", "a.x.y.b", "a.b.c.b", "x.a.y", "a.*", "a.#"]),
    (".", &["."]),
    (".#", &[".", "..", ".b"]),
    ("#.", &[".", "..", "a."]),
    ("a.", &["a."]),
    (".b", &[".b"]),
    ("a..b", &["a..b"]),
    ("a.*.#", &["a.b", "a..b", "a.", "a.b.c", "a.a.b", "a.b.b", "a.x.y.b", "a.b.c.b", "a.*", "a.#"]),
    ("#.b.#.b", &["a.b.b", "a.b.c.b"]),
    ("a#", &["a#"]),
    ("#.*.b", &["a.b", "a..b", ".b", "a.a.b", "a.b.b", "a.x.y.b", "a.b.c.b"]),
];

fn taken(pattern: &str) -> Vec<&'static str> {
    KEYS.into_iter().filter(|key| matches(pattern, key)).collect()
}

#[test]
fn a_pattern_takes_the_keys_that_rabbitmq_takes() {
    for (pattern, keys) in TAKEN {
        assert_eq!(taken(pattern), keys, "pattern `{pattern}`");
    }
}

#[test]
fn hashes_alone_take_every_key_and_with_a_star_every_key_with_a_word() {
    assert_eq!(taken("#"), KEYS);
    assert_eq!(taken("#.#"), KEYS);
    assert_eq!(taken("*.#"), KEYS[1..]);
    assert_eq!(taken("#.*"), KEYS[1..]);
    assert!(taken("*a").is_empty());
}

#[test]
fn a_long_key_against_many_hashes_takes_no_time() {
    let pattern = "#.a.".repeat(30) + "b";
    let key = "a.".repeat(100) + "c";
    assert!(!matches(&pattern, &key));
}
