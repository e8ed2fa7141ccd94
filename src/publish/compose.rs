//! From an envelope and a body to a message on its way.

use bytes::Bytes;

use crate::{
    connection::Core,
    error::Result,
    message::{Envelope, Properties},
    telemetry::TraceContext,
    topology::check_length,
    transport::Outgoing,
};

/// What goes out, before the envelope is completed and written.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) mandatory: bool,
    pub(crate) envelope: Envelope,
    /// Everything but headers and message id.
    pub(crate) properties: Properties,
    pub(crate) body: Bytes,
}

/// Completes the envelope and writes it into the headers (wire contract, sections 1 and 3), with
/// the trace context of the work that runs now (section 18).
///
/// Refuses reserved application headers.
pub(crate) fn compose(core: &Core, draft: Draft) -> Result<Outgoing> {
    draft.envelope.check()?;
    check_length("id", draft.envelope.id())?;
    let envelope = TraceContext::stamp(draft.envelope).completed(
        &draft.routing_key,
        core.clock().now_ms(),
        Some(core.origin()),
    );
    Ok(Outgoing {
        exchange: draft.exchange,
        routing_key: draft.routing_key,
        mandatory: draft.mandatory,
        properties: draft.properties.carrying(&envelope),
        body: draft.body,
    })
}
