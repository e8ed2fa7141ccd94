//! What the crate says about itself: trace context, spans and metrics.
//!
//! - **Trace context.** A [`TraceContext`] is the W3C `traceparent` and `tracestate` of the work
//!   that runs now. Whatever is published or stored in an outbox while it runs carries it on, and a
//!   handler runs under the context of its message. So one trace id leads from an HTTP request to
//!   the last effect, even when a process died between: the context travels with the message.
//! - **Spans** through `tracing`: `publish`, `process` and `request`, each with the name
//!   `{destination} publish` and so on in its field `otel.name` (wire contract, section 18). With
//!   feature `opentelemetry`, spans and messages are joined: the parent of a `process` span is the
//!   one that published, whichever process it ran in.
//! - **Metrics** through the `metrics` facade, under the names in [`metric`]. Without a recorder
//!   they cost little; install one before the first message, where it is wanted.

mod consuming;
pub mod metric;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod publishing;
mod trace_context;

pub(crate) use consuming::{ConsumerMetrics, Settled, on_behalf_of, process_span};
pub(crate) use publishing::Sending;
pub use trace_context::TraceContext;

#[cfg(test)]
mod cost;
