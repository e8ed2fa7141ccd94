//! The names of the metrics, shared by every language of the family (wire contract, section 18).
//!
//! Durations and ages are histograms in seconds. Tags in brackets.

use metrics::Unit;

/// Messages that the application published, by itself or by a relay \[exchange, routing.key, message.type, transport,
/// outcome: `confirmed`, `unroutable`, `refused`, `failed`\].
///
/// Copies that the library publishes for a message (retry, dead letter, replay, hop) are not in
/// it. A send whose future was dropped is not counted.
pub const PUBLISH_TOTAL: &str = "acemq.publish.total";
/// From the call of a send to its confirm \[as [`PUBLISH_TOTAL`]\].
pub const PUBLISH_DURATION: &str = "acemq.publish.duration";
/// Deliveries, each counted once by what was settled \[queue, message.type, outcome: `acked`,
/// `retried`, `rejected`, `dead_lettered`, `parked`, `in_progress`\].
///
/// `rejected` went back to its queue: the consumer stopped, a copy did not land, or the channel
/// was gone before the message could be settled. A duplicate is `acked`, a deferred message
/// `retried`.
pub const CONSUME_TOTAL: &str = "acemq.consume.total";
/// From the arrival of a delivery to its settlement \[as [`CONSUME_TOTAL`]\].
pub const CONSUME_DURATION: &str = "acemq.consume.duration";
/// Which attempt a delivery is, from 1; a histogram \[queue\].
pub const CONSUME_ATTEMPTS: &str = "acemq.consume.attempts";
/// Deliveries that are being handled; a gauge \[queue\].
pub const CONSUME_IN_FLIGHT: &str = "acemq.consume.in.flight";
/// Messages published again, as another attempt or later \[queue\].
pub const RETRIED_TOTAL: &str = "acemq.messages.retried.total";
/// Messages set aside \[queue, outcome: `dead_lettered`, `parked`\].
pub const DEAD_LETTERED_TOTAL: &str = "acemq.messages.dead.lettered.total";
/// Copies that did not land \[queue, target\].
pub const SET_ASIDE_FAILED: &str = "acemq.messages.set.aside.failed";
/// Waits whose rung is missing in the broker \[queue, rung\].
pub const RUNG_MISSING: &str = "acemq.retry.rung.missing";
/// Calls of a requester \[outcome: `answered`, `timed_out`, `failed`, `cancelled`\].
pub const REQUEST_TOTAL: &str = "acemq.request.total";
/// From the start of a call to its end \[as [`REQUEST_TOTAL`]\].
pub const REQUEST_DURATION: &str = "acemq.request.duration";
/// Outbox records that a relay published, or that failed by themselves \[outcome: `published`,
/// `failed`\]. A record that was given back because of an outage is not counted.
pub const OUTBOX_TOTAL: &str = "acemq.outbox.total";
/// The age of an outbox record when its publish ended \[outcome\].
pub const OUTBOX_LAG: &str = "acemq.outbox.lag";
/// Runs of a pipeline that came to their end \[pipeline, step, outcome: `completed`,
/// `ended_early`\].
pub const PIPELINE_RUN_TOTAL: &str = "acemq.pipeline.run.total";
/// From the first publish of a run to its end \[as [`PIPELINE_RUN_TOTAL`]\].
pub const PIPELINE_RUN_DURATION: &str = "acemq.pipeline.run.duration";
/// Runs of durable sagas that ended here \[saga, outcome: `complete`, `compensated`,
/// `unresolved`\]. A name of this library; no other one of the family has it yet.
pub const SAGA_RUN_TOTAL: &str = "acemq.saga.run.total";

const COUNTERS: &[(&str, &str)] = &[
    (PUBLISH_TOTAL, "Messages that the application published"),
    (CONSUME_TOTAL, "Deliveries, by what was settled"),
    (RETRIED_TOTAL, "Messages published again"),
    (DEAD_LETTERED_TOTAL, "Messages set aside"),
    (SET_ASIDE_FAILED, "Copies that did not land"),
    (RUNG_MISSING, "Waits whose rung is missing in the broker"),
    (REQUEST_TOTAL, "Calls of a requester"),
    (OUTBOX_TOTAL, "Outbox records that a relay tried to publish"),
    (PIPELINE_RUN_TOTAL, "Runs of a pipeline that came to their end"),
];

const SECONDS: &[(&str, &str)] = &[
    (PUBLISH_DURATION, "From the call of a send to its confirm"),
    (CONSUME_DURATION, "From the arrival of a delivery to its settlement"),
    (REQUEST_DURATION, "From the start of a call to its end"),
    (OUTBOX_LAG, "The age of an outbox record when its publish ended"),
    (PIPELINE_RUN_DURATION, "From the first publish of a run to its end"),
];

/// Tells the installed recorder what each metric is and in which unit.
///
/// Optional: call it once, after a recorder was installed.
pub fn describe() {
    for &(name, text) in COUNTERS {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    for &(name, text) in SECONDS {
        metrics::describe_histogram!(name, Unit::Seconds, text);
    }
    metrics::describe_counter!(SAGA_RUN_TOTAL, Unit::Count, "Runs of durable sagas that ended");
    metrics::describe_histogram!(CONSUME_ATTEMPTS, Unit::Count, "Which attempt a delivery is");
    metrics::describe_gauge!(CONSUME_IN_FLIGHT, Unit::Count, "Deliveries that are being handled");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::message::vectors::vectors;

    #[test]
    fn the_names_are_those_of_the_family() {
        let family: BTreeSet<String> =
            serde_json::from_value(vectors("/exercised_metrics/names")).expect("a list of names");
        let ours: BTreeSet<String> = COUNTERS
            .iter()
            .chain(SECONDS)
            .map(|(name, _)| (*name).to_owned())
            .chain([CONSUME_ATTEMPTS.to_owned(), CONSUME_IN_FLIGHT.to_owned()])
            .collect();
        assert_eq!(ours, family);
    }
}
