//! The bridge to OpenTelemetry: the spans of `tracing` as the causes of messages, and back.

use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::TraceContext;

/// The context of the current span, if an OpenTelemetry layer records it.
pub(super) fn current() -> Option<TraceContext> {
    let context = Span::current().context();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return None;
    }
    let (trace, id) = (span.trace_id(), span.span_id());
    let parent = format!("00-{trace}-{id}-{:02x}", span.trace_flags().to_u8());
    TraceContext::parse(&parent, Some(&span.trace_state().header()))
}

/// Makes a span the child of one in another process.
pub(super) fn set_parent(span: &Span, context: &TraceContext) {
    let (Ok(trace), Ok(id)) =
        (TraceId::from_hex(context.trace_id()), SpanId::from_hex(context.span_id()))
    else {
        return;
    };
    let flags = if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    // A state that cannot be read is dropped, never the trace.
    let state = context.tracestate().and_then(|state| state.parse::<TraceState>().ok());
    let parent = SpanContext::new(trace, id, flags, true, state.unwrap_or_default());
    // Fails only if the span is recorded by no layer or has begun; there is nothing to do then.
    let _ = span.set_parent(Context::new().with_remote_span_context(parent));
}
