//! What happens to a message, as a pure rule; the worker carries it out.

use std::time::Duration;

use super::retry_policy::{RetryPolicy, rung_for};
use crate::topology::standard;

/// How the handling of a message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The handler is done with it.
    Ack,
    /// The handler failed; `after` is the delay it asks for instead of the policy's.
    Retry { reason: String, after: Option<Duration> },
    /// The handler says that trying again cannot help.
    Reject(String),
    /// The handler wants a person to look at it.
    Park(String),
    /// The handler wants it later, without an attempt counted.
    Defer(Duration),
    /// The handler panicked.
    Panic(String),
    /// No codec could decode the body.
    Undecodable(String),
}

/// What the worker does with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Acknowledges it.
    Ack,
    /// Publishes the next attempt to the queue `rung`, which gives it back after `delay`. Where
    /// the rung does not exist, waits `delay` in the consumer instead.
    RetryInBroker { rung: String, delay: Duration },
    /// Waits, with the policy's jitter, and publishes the next attempt to the message's queue.
    RetryInConsumer(Duration),
    /// Publishes it to the dead-letter queue with this error.
    DeadLetter(Cause, String),
    /// Publishes it to the parked queue with this error.
    Park(Cause, String),
    /// Publishes the same attempt to the queue `rung`, as [`Self::RetryInBroker`] does the next.
    DeferInBroker { rung: String, delay: Duration },
    /// Waits and publishes it to its queue with the same attempt.
    DeferInConsumer(Duration),
}

/// Why a message is set aside, as a word that stays the same; the error beside it is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Exhausted,
    TooOld,
    Rejected,
    Panicked,
    Parked,
    Undecodable,
}

impl Cause {
    /// Whether the message waits for a person, who may still let it go on.
    pub(crate) fn is_parked(self) -> bool {
        matches!(self, Self::Parked | Self::Undecodable)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::TooOld => "too_old",
            Self::Rejected => "rejected",
            Self::Panicked => "panicked",
            Self::Parked => "parked",
            Self::Undecodable => "undecodable",
        }
    }
}

/// Why a message is set aside, if its handling ended like this; none if it stays in hand.
pub(crate) fn sets_aside(
    outcome: &Outcome,
    attempt: i32,
    age: Option<Duration>,
    policy: &RetryPolicy,
) -> Option<(Cause, String)> {
    let attempt = u32::try_from(attempt).unwrap_or(1);
    match decide(outcome.clone(), attempt, age, policy, "") {
        Step::DeadLetter(cause, reason) | Step::Park(cause, reason) => Some((cause, reason)),
        _ => None,
    }
}

/// Decides what happens to a message of `queue`.
///
/// `attempt` counts from 1. `age` is the time since the first publish, none where that is unknown.
/// The texts are the family's (wire contract, section 7): for people, not a key to parse.
pub(crate) fn decide(
    outcome: Outcome,
    attempt: u32,
    age: Option<Duration>,
    policy: &RetryPolicy,
    queue: &str,
) -> Step {
    match outcome {
        Outcome::Ack => Step::Ack,
        Outcome::Retry { reason, after } => retry(&reason, after, attempt, age, policy, queue),
        Outcome::Reject(reason) => {
            Step::DeadLetter(Cause::Rejected, format!("the handler rejected it: {reason}"))
        }
        Outcome::Park(reason) => {
            Step::Park(Cause::Parked, format!("the handler parked it: {reason}"))
        }
        Outcome::Defer(delay) => match rung(delay, policy, queue) {
            Some((rung, delay)) => Step::DeferInBroker { rung, delay },
            None => Step::DeferInConsumer(delay),
        },
        Outcome::Panic(text) => Step::DeadLetter(
            Cause::Panicked,
            format!("the handler reported an unprocessable message: {text}"),
        ),
        Outcome::Undecodable(text) => {
            Step::Park(Cause::Undecodable, format!("could not be decoded: {text}"))
        }
    }
}

fn retry(
    reason: &str,
    after: Option<Duration>,
    attempt: u32,
    age: Option<Duration>,
    policy: &RetryPolicy,
    queue: &str,
) -> Step {
    let scheduled = policy.delay_after(attempt).filter(|_| policy.retries(attempt, age));
    let Some(scheduled) = scheduled else {
        let (cause, why) = given_up(attempt, policy);
        return Step::DeadLetter(cause, format!("{why}: {reason}"));
    };
    let delay = after.unwrap_or(scheduled);
    match rung(delay, policy, queue) {
        Some((rung, delay)) => Step::RetryInBroker { rung, delay },
        None => Step::RetryInConsumer(delay),
    }
}

/// The rung that a delay is spent in, with the delay that it has; none where it is spent in the
/// consumer.
fn rung(delay: Duration, policy: &RetryPolicy, queue: &str) -> Option<(String, Duration)> {
    let rung = policy.waits_in_broker(delay).then(|| rung_for(&policy.rungs(), delay))??;
    Some((standard::retry_rung_name(queue, rung), rung))
}

/// Why a message is not tried again; spent attempts are named before the age.
fn given_up(attempt: u32, policy: &RetryPolicy) -> (Cause, String) {
    match policy.age_limit().filter(|_| attempt < policy.max_attempts()) {
        Some(limit) => (Cause::TooOld, format!("exceeded the maximum message age of {limit:?}")),
        None => (Cause::Exhausted, format!("exhausted {attempt} attempts")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        consume::vectors::named_policy,
        message::vectors::{each, vectors},
    };

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn failed(after: Option<Duration>) -> Outcome {
        Outcome::Retry { reason: "boom".into(), after }
    }

    fn in_broker(rung: &str, delay: Duration) -> Step {
        Step::RetryInBroker { rung: rung.into(), delay }
    }

    fn dead(cause: Cause, error: &str) -> Step {
        Step::DeadLetter(cause, error.into())
    }

    #[test]
    fn each_outcome_leads_to_its_step() {
        let boom = || "boom".to_owned();
        let table = [
            (Outcome::Ack, Step::Ack),
            (failed(None), Step::RetryInConsumer(secs(10))),
            (Outcome::Reject(boom()), dead(Cause::Rejected, "the handler rejected it: boom")),
            (
                Outcome::Park(boom()),
                Step::Park(Cause::Parked, "the handler parked it: boom".into()),
            ),
            (Outcome::Defer(secs(7)), Step::DeferInConsumer(secs(7))),
            (
                Outcome::Defer(secs(50)),
                Step::DeferInBroker { rung: "orders.retry.1m".into(), delay: secs(60) },
            ),
            (
                Outcome::Panic(boom()),
                dead(Cause::Panicked, "the handler reported an unprocessable message: boom"),
            ),
            (
                Outcome::Undecodable(boom()),
                Step::Park(Cause::Undecodable, "could not be decoded: boom".into()),
            ),
        ];
        let policy = RetryPolicy::exponential(5, secs(10), secs(60));
        for (outcome, step) in table {
            assert_eq!(decide(outcome, 1, Some(secs(1)), &policy, "orders"), step);
        }
    }

    #[test]
    fn a_failure_waits_where_the_policy_says_until_attempts_or_age_end_it() {
        let policy = RetryPolicy::exponential(5, secs(10), secs(60)).max_age(secs(120));
        let table = [
            (1, Some(0), Step::RetryInConsumer(secs(10))),
            (2, None, Step::RetryInConsumer(secs(20))),
            (3, Some(119), in_broker("orders.retry.40s", secs(40))),
            (4, Some(119), in_broker("orders.retry.1m", secs(60))),
            (4, Some(120), dead(Cause::TooOld, "exceeded the maximum message age of 120s: boom")),
            (5, Some(0), dead(Cause::Exhausted, "exhausted 5 attempts: boom")),
            // Spent attempts name the cause even where the age would end it too.
            (9, Some(500), dead(Cause::Exhausted, "exhausted 9 attempts: boom")),
        ];
        for (attempt, age, step) in table {
            let found = decide(failed(None), attempt, age.map(secs), &policy, "orders");
            assert_eq!(found, step, "attempt {attempt} at {age:?} s");
        }
    }

    #[test]
    fn a_delay_that_the_handler_asks_for_takes_the_nearest_rung_that_is_long_enough() {
        let policy = RetryPolicy::exponential(5, secs(10), secs(60));
        let table = [
            (5, Step::RetryInConsumer(secs(5))),
            (31, in_broker("orders.retry.40s", secs(40))),
            (45, in_broker("orders.retry.1m", secs(60))),
            (3600, in_broker("orders.retry.1m", secs(60))),
        ];
        for (after, step) in table {
            assert_eq!(decide(failed(Some(secs(after))), 1, None, &policy, "orders"), step);
        }
        let without_rungs = RetryPolicy::fixed(3, secs(1));
        let step = decide(failed(Some(secs(45))), 1, None, &without_rungs, "orders");
        assert_eq!(step, Step::RetryInConsumer(secs(45)));
        let spent = decide(failed(Some(secs(1))), 3, None, &without_rungs, "orders");
        assert_eq!(spent, dead(Cause::Exhausted, "exhausted 3 attempts: boom"));
    }

    #[test]
    fn every_error_text_of_the_family_is_written_but_the_interceptors() {
        let policy = RetryPolicy::exponential(5, secs(10), secs(60)).max_age(secs(120));
        let decide = |outcome, attempt, age| decide(outcome, attempt, Some(age), &policy, "orders");
        let text = || "…".to_owned();
        let retry = || Outcome::Retry { reason: text(), after: None };
        let errors: Vec<String> = [
            decide(retry(), 5, secs(0)),
            decide(retry(), 1, secs(120)),
            decide(Outcome::Reject(text()), 1, secs(0)),
            decide(Outcome::Park(text()), 1, secs(0)),
            decide(Outcome::Panic(text()), 1, secs(0)),
            decide(Outcome::Undecodable(text()), 1, secs(0)),
        ]
        .into_iter()
        .map(|step| match step {
            Step::DeadLetter(_, error) | Step::Park(_, error) => error,
            other => panic!("no error in {other:?}"),
        })
        .collect();
        each("/retry/error_prefixes", |prefix| {
            let prefix = prefix.as_str().unwrap();
            // This crate has no interceptors: a handler refuses by `reject`.
            if prefix == "an interceptor refused it: …" {
                return;
            }
            let prefix = prefix.replace(" N ", " 5 ");
            let prefix = prefix.trim_end_matches('…');
            assert!(errors.iter().any(|error| error.starts_with(prefix)), "nothing has {prefix}");
        });
        let prefixes = vectors("/retry/error_prefixes");
        assert_eq!(prefixes.as_array().unwrap().len(), errors.len() + 1);
    }

    #[test]
    fn every_hop_of_the_vectors_goes_where_it_should() {
        each("/retry/hop", |case| {
            let queue = case["queue"].as_str().unwrap();
            let policy = named_policy(case["policy"].as_str().unwrap());
            let attempt = u32::try_from(case["in"]["x-acemq-attempt"].as_u64().unwrap()).unwrap();
            let boom = || "boom".to_owned();
            let outcome = match case["name"].as_str().unwrap() {
                "retry-in-broker" | "retry-in-consumer" | "exhausted" => failed(None),
                "fatal" => Outcome::Panic(boom()),
                "undecodable" => Outcome::Undecodable(boom()),
                "handler-park" => Outcome::Park(boom()),
                other => panic!("no such case: {other}"),
            };
            let expected = &case["expect"];
            let (target, next, error, waits) = match decide(outcome, attempt, None, &policy, queue)
            {
                Step::RetryInBroker { rung, .. } => (rung, attempt + 1, None, None),
                Step::RetryInConsumer(delay) => (queue.to_owned(), attempt + 1, None, Some(delay)),
                Step::DeadLetter(_, error) => {
                    (standard::dead_letter_name(queue), attempt, Some(error), None)
                }
                Step::Park(_, error) => (standard::parked_name(queue), attempt, Some(error), None),
                other => panic!("not a hop: {other:?}"),
            };
            let publish = expected.get("then_publish").unwrap_or(expected);
            assert_eq!(publish["exchange"], "");
            assert_eq!(publish["mandatory"], true);
            assert_eq!(publish["routing_key"], target);
            assert_eq!(publish["headers"]["x-acemq-attempt"], next);
            assert_eq!(publish["headers"].get("x-acemq-error"), error.map(Value::from).as_ref());
            if let Some(delay) = waits {
                let bounds = [0.0, 1.0].map(|random| policy.jittered(delay, random).as_millis());
                let bounds = bounds.map(|ms| u64::try_from(ms).unwrap());
                assert_eq!(expected["wait_ms_between"], serde_json::json!(bounds));
            }
        });
    }
}
