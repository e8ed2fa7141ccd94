//! The ladder of powers of two.
//!
//! A message's routing key is its remaining time in seconds as binary digits, one word each, the
//! highest first: `0.0.….1.0.1`. Rung `k` holds messages for `2^k` seconds and then dead-letters
//! them, under the same key, to exchange `k`. Of the queues bound there a message goes to the rung
//! of its next lower one, or, if all lower digits are zero, to the control queue. So each message
//! visits each rung at most once, and the broker's rule against dead-letter cycles never applies.

use std::time::Duration;

use super::ladder::Hop;
use crate::topology::{Exchange, Queue, Topology};

/// The name that the exchanges and queues begin with.
pub(super) const NAME: &str = "acemq.delay";

/// The number of rungs: the longest holds messages for 2^24 seconds, 194 days.
const RUNGS: usize = 25;

/// The longest time that one way down the ladder takes, in seconds; a longer one starts again.
const LONGEST: u64 = (1 << RUNGS) - 1;

/// The first hop of a message with this many milliseconds left; none if it is due.
///
/// Seconds are rounded up, so that a message is never early.
pub(super) fn next(name: &str, remaining_ms: u64) -> Option<Hop> {
    let seconds = remaining_ms.div_ceil(1000).min(LONGEST);
    (seconds > 0).then(|| Hop { exchange: exchange(name, RUNGS), routing_key: key(seconds) })
}

fn key(seconds: u64) -> String {
    let digits = (0..RUNGS).rev().map(|bit| if seconds >> bit & 1 == 1 { "1" } else { "0" });
    digits.collect::<Vec<_>>().join(".")
}

/// Where messages go that have digits below `rung` left. The one above all rungs is where they
/// start.
fn exchange(name: &str, rung: usize) -> String {
    format!("{name}.{rung}")
}

fn queue(name: &str, rung: usize) -> String {
    format!("{name}.rung.{rung}")
}

/// Matches keys whose highest digit below `above` is at `rung`; with none, those without any.
fn pattern(above: usize, rung: Option<usize>) -> String {
    let digits = (0..RUNGS).rev().map(|bit| match rung {
        _ if bit >= above => "*",
        Some(rung) if bit < rung => "*",
        Some(rung) if bit == rung => "1",
        _ => "0",
    });
    digits.collect::<Vec<_>>().join(".")
}

pub(super) fn topology(name: &str, control: &str) -> Topology {
    let mut topology = Topology::new().queue(Queue::quorum(control));
    for rung in 0..RUNGS {
        topology = topology.queue(held(name, rung));
    }
    for above in 0..=RUNGS {
        let from = exchange(name, above);
        topology = topology.exchange(Exchange::topic(from.as_str()));
        for rung in 0..above {
            let to = queue(name, rung);
            topology = topology.bind(to, from.as_str(), pattern(above, Some(rung)));
        }
        topology = topology.bind(control, from.as_str(), pattern(above, None));
    }
    topology
}

/// A rung: the broker keeps a message until the next place has confirmed it.
///
/// At-least-once dead-lettering needs a queue that refuses what it has no room for (RabbitMQ's
/// guide to quorum queues, "Dead lettering").
fn held(name: &str, rung: usize) -> Queue {
    Queue::quorum(queue(name, rung))
        .message_ttl(Duration::from_secs(1 << rung))
        .argument("x-dead-letter-exchange", exchange(name, rung))
        .argument("x-dead-letter-strategy", "at-least-once")
        .argument("x-overflow", "reject-publish")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Follows a key through the patterns, as the broker does: the seconds it is held, and the hops.
    fn follow(key: &str) -> (u64, usize) {
        let matches =
            |pattern: &str| pattern.split('.').zip(key.split('.')).all(|(p, k)| p == "*" || p == k);
        let (mut above, mut held, mut hops) = (RUNGS, 0, 0);
        loop {
            let rungs: Vec<usize> =
                (0..above).filter(|rung| matches(&pattern(above, Some(*rung)))).collect();
            match rungs[..] {
                [rung] => {
                    assert!(!matches(&pattern(above, None)), "two ways on");
                    held += 1 << rung;
                    above = rung;
                    hops += 1;
                }
                [] => {
                    assert!(matches(&pattern(above, None)), "no way on");
                    return (held, hops);
                }
                _ => panic!("two rungs"),
            }
        }
    }

    proptest! {
        #[test]
        fn a_message_is_held_for_its_time_and_takes_one_way(seconds in 1..=LONGEST) {
            let hop = next("n", seconds * 1000).unwrap();
            let (held, hops) = follow(&hop.routing_key);
            prop_assert_eq!(held, seconds);
            prop_assert_eq!(hops, seconds.count_ones() as usize);
        }
    }

    #[test]
    fn thirty_days_take_at_most_22_hops() {
        let most = (1..=30 * 86_400_u64).map(u64::count_ones).max();
        assert!(most <= Some(22), "{most:?}");
    }

    #[test]
    fn a_message_is_never_early_and_less_than_a_second_late() {
        assert_eq!(next("n", 0), None);
        for ms in [1, 999, 1000, 1001, 59_999] {
            let (held, _) = follow(&next("n", ms).unwrap().routing_key);
            assert!((ms..ms + 1000).contains(&(held * 1000)), "{ms} ms");
        }
        let (held, _) = follow(&next("n", u64::MAX).unwrap().routing_key);
        assert_eq!(held, LONGEST);
    }
}
