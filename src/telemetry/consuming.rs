//! A delivery, watched from its arrival to its settlement.

use metrics::{Gauge, Histogram, Label, counter, gauge, histogram};
use tokio::time::Instant;
use tracing::{Instrument, Span, field::Empty};

use super::{
    TraceContext,
    metric::{
        CONSUME_ATTEMPTS, CONSUME_DURATION, CONSUME_IN_FLIGHT, CONSUME_TOTAL, DEAD_LETTERED_TOTAL,
        RETRIED_TOTAL, RUNG_MISSING, SET_ASIDE_FAILED,
    },
    trace_context::{caused_by, scope},
};
use crate::message::{Envelope, Received};

/// What became of a delivery in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Acked,
    /// Recognised as handled before, and acknowledged.
    Duplicate,
    Retried,
    Deferred,
    DeadLettered,
    Parked,
    /// Put back because another consumer was handling the same message.
    InProgress,
    /// Given back to its queue.
    Returned,
    /// Not by us: the channel was gone, and the broker delivers the message again.
    TooLate,
}

impl Settled {
    /// The outcome of the family's metrics.
    fn outcome(self) -> &'static str {
        match self {
            Self::Acked | Self::Duplicate => "acked",
            Self::Retried | Self::Deferred => "retried",
            Self::DeadLettered => "dead_lettered",
            Self::Parked => "parked",
            Self::InProgress => "in_progress",
            Self::Returned | Self::TooLate => "rejected",
        }
    }
}

/// The span of a message's handling, caused by whoever published the message.
pub(crate) fn process_span(queue: &str, routing_key: &str, envelope: &Envelope) -> Span {
    let span = tracing::info_span!(
        parent: None,
        "process",
        otel.name = %format_args!("{queue} process"),
        otel.kind = "consumer",
        otel.status_code = Empty,
        messaging.system = "rabbitmq",
        messaging.operation = "process",
        messaging.destination.name = queue,
        messaging.rabbitmq.destination.routing_key = routing_key,
        messaging.message.id = envelope.id(),
        messaging.message.conversation_id = envelope.correlation_id(),
        messaging.acemq.message_type = envelope.message_type(),
        messaging.acemq.attempt = envelope.attempt(),
        messaging.acemq.outcome = Empty,
        messaging.acemq.reason = Empty,
        messaging.acemq.retry_delay_ms = Empty,
    );
    caused_by(&span, envelope.headers());
    span
}

/// Runs work in the span of a message and under its trace context.
///
/// Each task that works for a message needs it: neither is inherited by a spawned task.
pub(crate) async fn on_behalf_of<F: Future>(received: &Received, work: F) -> F::Output {
    let context = TraceContext::of(received.envelope.headers());
    scope(context, work).instrument(received.span.clone()).await
}

/// The metrics of one consumer.
#[derive(Debug)]
pub(crate) struct ConsumerMetrics {
    queue: String,
    attempts: Histogram,
    in_flight: Gauge,
}

impl ConsumerMetrics {
    pub(crate) fn new(queue: &str) -> Self {
        let queue = queue.to_owned();
        Self {
            attempts: histogram!(CONSUME_ATTEMPTS, "queue" => queue.clone()),
            in_flight: gauge!(CONSUME_IN_FLIGHT, "queue" => queue.clone()),
            queue,
        }
    }

    /// Begins to watch a delivery.
    pub(crate) fn arrived<'a>(&'a self, envelope: &'a Envelope, span: &'a Span) -> Handling<'a> {
        self.attempts.record(f64::from(envelope.attempt()));
        self.in_flight.increment(1);
        let since = Instant::now();
        Handling { metrics: self, envelope, span, since, settled: Settled::TooLate }
    }

    /// Counts a copy that did not land.
    pub(crate) fn copy_lost(&self, target: &str) {
        let (queue, target) = (self.queue.clone(), target.to_owned());
        counter!(SET_ASIDE_FAILED, "queue" => queue, "target" => target).increment(1);
    }

    /// Counts a wait that had no rung.
    pub(crate) fn rung_missing(&self, rung: &str) {
        let (queue, rung) = (self.queue.clone(), rung.to_owned());
        counter!(RUNG_MISSING, "queue" => queue, "rung" => rung).increment(1);
    }
}

/// A delivery that is being handled. It counts once, when it is dropped: as what was settled, or
/// as one that the broker delivers again.
#[derive(Debug)]
pub(crate) struct Handling<'a> {
    metrics: &'a ConsumerMetrics,
    envelope: &'a Envelope,
    span: &'a Span,
    since: Instant,
    settled: Settled,
}

impl Handling<'_> {
    /// Notes what was settled.
    pub(crate) fn ended(mut self, settled: Settled) {
        self.settled = settled;
    }
}

impl Handling<'_> {
    /// Adds the event of the family's name to the span.
    fn tell(&self) {
        let queue = self.metrics.queue.as_str();
        match self.settled {
            Settled::Retried | Settled::Deferred => {
                tracing::debug!(parent: self.span, queue, "message.retried");
            }
            Settled::DeadLettered => {
                tracing::debug!(parent: self.span, queue, "message.dead_lettered");
            }
            Settled::Parked => tracing::debug!(parent: self.span, queue, "message.parked"),
            _ => {}
        }
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        let outcome = self.settled.outcome();
        self.span.record("messaging.acemq.outcome", outcome);
        if matches!(self.settled, Settled::DeadLettered | Settled::Parked) {
            self.span.record("otel.status_code", "ERROR");
        }
        self.metrics.in_flight.decrement(1);
        let queue = Label::new("queue", self.metrics.queue.clone());
        let outcome = Label::from_static_parts("outcome", outcome);
        self.tell();
        match self.settled {
            Settled::Retried | Settled::Deferred => {
                counter!(RETRIED_TOTAL, vec![queue.clone()]).increment(1);
            }
            Settled::DeadLettered | Settled::Parked => {
                let labels = vec![queue.clone(), outcome.clone()];
                counter!(DEAD_LETTERED_TOTAL, labels).increment(1);
            }
            _ => {}
        }
        let message_type = Label::new("message.type", self.envelope.message_type().to_owned());
        let labels = vec![queue, message_type, outcome];
        histogram!(CONSUME_DURATION, labels.clone()).record(self.since.elapsed());
        counter!(CONSUME_TOTAL, labels).increment(1);
    }
}
