//! A publish of the application, watched from the call to the confirm.

use metrics::{Label, counter, histogram};
use tokio::time::Instant;
use tracing::{Span, field::Empty};

use super::{
    metric::{PUBLISH_DURATION, PUBLISH_TOTAL},
    trace_context::caused_by,
};
use crate::{
    error::{Error, Result},
    message::{Envelope, Headers},
};

/// A publish under way. Dropped before its [`end`](Self::end) it counts nothing.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    exchange: &'a str,
    routing_key: &'a str,
    message_type: String,
    transport: &'static str,
    span: Span,
    since: Instant,
}

impl<'a> Sending<'a> {
    pub(crate) fn start(
        exchange: &'a str,
        routing_key: &'a str,
        envelope: &Envelope,
        transport: &'static str,
    ) -> Self {
        let named = Some(envelope.message_type()).filter(|name| !name.is_empty());
        let message_type = named.unwrap_or(routing_key).to_owned();
        let destination = if exchange.is_empty() { routing_key } else { exchange };
        let span = tracing::info_span!(
            "publish",
            otel.name = %format_args!("{destination} publish"),
            otel.kind = "producer",
            otel.status_code = Empty,
            messaging.system = "rabbitmq",
            messaging.operation = "publish",
            messaging.destination.name = destination,
            messaging.rabbitmq.destination.routing_key = routing_key,
            messaging.message.id = envelope.id(),
            messaging.message.conversation_id = envelope.correlation_id(),
            messaging.acemq.message_type = message_type,
            messaging.acemq.outcome = Empty,
            messaging.acemq.reason = Empty,
        );
        Self { exchange, routing_key, message_type, transport, span, since: Instant::now() }
    }

    /// Makes whoever stored the message the cause, in place of the task that publishes it.
    pub(crate) fn caused_by(self, headers: &Headers) -> Self {
        caused_by(&self.span, headers);
        self
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Counts the publish by its result.
    pub(crate) fn end<T>(self, result: &Result<T>) {
        let outcome = match result {
            Ok(_) => "confirmed",
            Err(error) => self.failed(error),
        };
        self.span.record("messaging.acemq.outcome", outcome);
        let labels = vec![
            Label::new("exchange", self.exchange.to_owned()),
            Label::new("routing.key", self.routing_key.to_owned()),
            Label::new("message.type", self.message_type),
            Label::from_static_parts("transport", self.transport),
            Label::from_static_parts("outcome", outcome),
        ];
        histogram!(PUBLISH_DURATION, labels.clone()).record(self.since.elapsed());
        counter!(PUBLISH_TOTAL, labels).increment(1);
    }

    fn failed(&self, error: &Error) -> &'static str {
        self.span.record("otel.status_code", "ERROR");
        self.span.record("messaging.acemq.reason", tracing::field::display(error));
        match error {
            Error::Unroutable { .. } => "unroutable",
            Error::Nacked { .. } | Error::InvalidOption { .. } | Error::Codec { .. } => "refused",
            _ => "failed",
        }
    }
}
