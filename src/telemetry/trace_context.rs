//! The trace context of the work that runs now.

use std::fmt;

use uuid::Uuid;

use crate::message::{Envelope, HeaderValue, Headers};

/// The header that names the trace and the span that caused a message.
const TRACEPARENT: &str = "traceparent";
/// The header with what tracing systems add of their own.
const TRACESTATE: &str = "tracestate";
/// The length of a `traceparent` of version 00, and of its beginning in later versions.
const LENGTH: usize = 55;
/// A longer `tracestate` is dropped, as the W3C recommendation allows (section 3.3.1.5).
const MAX_STATE: usize = 512;

/// The W3C trace context of a piece of work: which trace it belongs to, and what caused it.
///
/// A handler runs under the context of its message. Whatever is published, requested or put into
/// an outbox while it runs carries the context on, unless its envelope has a `traceparent` of its
/// own. An application that receives a context by another way, such as an HTTP request, sets it
/// with [`scope`](Self::scope). A task that is spawned inside does not inherit it: wrap the future
/// in `scope` again, with [`current`](Self::current).
///
/// Without feature `opentelemetry` the context is passed on as it came, since this crate records
/// no spans. With it, the current span of `tracing` comes first: each message is caused by the
/// span that published it.
///
/// # Examples
///
/// ```
/// use acemq::{AceMq, Message, Queue, Topology, TraceContext};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), acemq::Error> {
/// let mq = AceMq::connect("memory://").await?;
/// mq.declare(&Topology::new().queue(Queue::new("orders"))).await?;
/// let (seen, mut traces) = tokio::sync::mpsc::unbounded_channel();
/// let _consumer = mq
///     .consumer::<u32>("orders")
///     .start(move |_: Message<u32>| {
///         let seen = seen.clone();
///         async move {
///             seen.send(TraceContext::current())?;
///             Ok(())
///         }
///     })
///     .await?;
///
/// let of_the_request = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = TraceContext::parse(of_the_request, None).expect("a valid header");
/// context.clone().scope(mq.publisher("", "orders").send(&42)).await?;
/// assert_eq!(traces.recv().await, Some(Some(context)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct TraceContext {
    parent: String,
    state: Option<String>,
}

tokio::task_local! {
    static CURRENT: Option<TraceContext>;
}

impl TraceContext {
    /// Reads the header `traceparent` and, if there is one, `tracestate`; none if the first is not
    /// valid (W3C Trace Context, section 3.2). A `tracestate` over 512 bytes is dropped.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let parent = valid(traceparent)?;
        let fits = |state: &&str| !state.is_empty() && state.len() <= MAX_STATE;
        Some(Self { parent: parent.to_owned(), state: tracestate.filter(fits).map(str::to_owned) })
    }

    /// Begins a new, sampled trace with random ids, for work that nothing else has caused.
    #[must_use]
    pub fn start() -> Self {
        let (trace, span) = (Uuid::new_v4().as_u128(), fastrand::u64(1..));
        Self { parent: format!("00-{trace:032x}-{span:016x}-01"), state: None }
    }

    /// Returns the context of the work that runs now; none outside a handler and a scope.
    #[must_use]
    pub fn current() -> Option<Self> {
        #[cfg(feature = "opentelemetry")]
        if let Some(context) = super::opentelemetry::current() {
            return Some(context);
        }
        CURRENT.try_with(Clone::clone).ok().flatten()
    }

    /// Runs a future under this context.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        scope(Some(self), work).await
    }

    /// Returns the `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> &str {
        &self.parent
    }

    /// Returns the `tracestate`.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the id of the whole trace: 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.parent[3..35]
    }

    /// Returns the id of the span that caused the work: 16 hexadecimal digits.
    #[must_use]
    pub fn span_id(&self) -> &str {
        &self.parent[36..52]
    }

    /// Returns whether whoever caused the work records it.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        u8::from_str_radix(&self.parent[53..LENGTH], 16).is_ok_and(|flags| flags & 1 == 1)
    }

    /// The context that a message carries.
    pub(crate) fn of(headers: &Headers) -> Option<Self> {
        let text = |name| headers.get(name).and_then(HeaderValue::as_str);
        Self::parse(text(TRACEPARENT)?, text(TRACESTATE))
    }

    /// Writes the current context into an envelope that has none.
    pub(crate) fn stamp(envelope: Envelope) -> Envelope {
        if envelope.headers().get(TRACEPARENT).is_some() {
            return envelope;
        }
        let Some(Self { parent, state }) = Self::current() else { return envelope };
        let envelope = envelope.header(TRACEPARENT, parent);
        match state {
            Some(state) => envelope.header(TRACESTATE, state),
            None => envelope.without_header(TRACESTATE),
        }
    }
}

/// Runs a future under a context, or under none: not under that of whoever polls it.
pub(crate) async fn scope<F: Future>(context: Option<TraceContext>, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}

/// Makes a span the child of the one that a message names.
#[cfg_attr(not(feature = "opentelemetry"), expect(unused_variables, reason = "tracing has none"))]
pub(super) fn caused_by(span: &tracing::Span, headers: &Headers) {
    #[cfg(feature = "opentelemetry")]
    if let Some(context) = TraceContext::of(headers) {
        super::opentelemetry::set_parent(span, &context);
    }
}

/// The part of a `traceparent` that every version has, if it is valid.
fn valid(text: &str) -> Option<&str> {
    let known = text.get(..LENGTH)?;
    let rest = &text[LENGTH..];
    let hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let some = |part: &str| hex(part) && part.bytes().any(|b| b != b'0');
    let mut parts = known.split('-');
    let mut part = |length| parts.next().filter(|part| part.len() == length);
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    let later = version != "00" && (rest.is_empty() || rest.starts_with('-'));
    let is_valid = hex(version)
        && version != "ff"
        && (rest.is_empty() || later)
        && some(trace)
        && some(span)
        && hex(flags);
    is_valid.then_some(known)
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TraceContext").field(&self.parent).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context() -> TraceContext {
        TraceContext::parse(PARENT, Some("vendor=1")).unwrap()
    }

    #[test]
    fn the_parts_of_a_valid_header_are_read() {
        let context = context();
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id(), "00f067aa0ba902b7");
        assert!(context.is_sampled());
        assert_eq!(context.tracestate(), Some("vendor=1"));
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = PARENT.replacen("00", "01", 1);
        let longer = format!("{later}-more");
        assert_eq!(TraceContext::parse(&longer, None).unwrap().traceparent(), later);
    }

    #[test]
    fn what_is_no_context_is_none() {
        let zero_trace = PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = PARENT.replace("00f067aa0ba902b7", &"0".repeat(16));
        let wrong = [
            "",
            "00",
            &PARENT[..54],
            &format!("{PARENT}-more"),
            &PARENT.to_uppercase(),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.replace('-', "_"),
            &zero_trace,
            &zero_span,
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ];
        for text in wrong {
            assert_eq!(TraceContext::parse(text, None), None, "{text}");
        }
    }

    #[test]
    fn a_long_state_is_dropped_and_the_trace_kept() {
        let context = TraceContext::parse(PARENT, Some(&"x".repeat(513))).unwrap();
        assert_eq!(context.tracestate(), None);
    }

    #[test]
    fn a_new_trace_is_valid_and_sampled() {
        let context = TraceContext::start();
        assert_eq!(TraceContext::parse(context.traceparent(), None), Some(context.clone()));
        assert!(context.is_sampled());
    }

    #[tokio::test]
    async fn an_envelope_takes_the_context_it_is_sent_in_unless_it_has_one() {
        assert_eq!(TraceContext::current(), None);
        let stamped = context().scope(async { TraceContext::stamp(Envelope::new()) }).await;
        assert_eq!(TraceContext::of(stamped.headers()), Some(context()));

        let other = TraceContext::start();
        let kept = other.scope(async { TraceContext::stamp(stamped) }).await;
        assert_eq!(TraceContext::of(kept.headers()), Some(context()));
    }

    #[tokio::test]
    async fn an_inner_scope_without_context_hides_the_outer_one() {
        let inner = context().scope(scope(None, async { TraceContext::current() })).await;
        assert_eq!(inner, None);
    }
}
