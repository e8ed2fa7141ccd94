//! Every header name on the wire, in one place (wire contract, sections 1, 2, 8, 9 and 10).

/// Header names.
pub(crate) mod header {
    /// The prefix that belongs to the engine: applications neither see nor set such headers.
    const RESERVED_PREFIX: &str = "x-acemq-";

    /// Whether a header belongs to the engine. Names are case-sensitive, as AMQP's are.
    pub(crate) fn is_reserved(name: &str) -> bool {
        name.starts_with(RESERVED_PREFIX)
    }

    /// Whether this member of the family knows the engine header.
    pub(crate) fn is_known(name: &str) -> bool {
        matches!(
            name,
            ID | TYPE
                | VERSION
                | CORRELATION
                | CAUSATION
                | ATTEMPT
                | FIRST_SEEN
                | ORIGIN
                | ERROR
                | CLAIM
                | ROUTE
                | ROUTE_POSITION
                | ROUTE_ID
        ) || is_legacy_replay(name)
    }

    pub(crate) const ID: &str = "x-acemq-id";
    pub(crate) const TYPE: &str = "x-acemq-type";
    pub(crate) const VERSION: &str = "x-acemq-version";
    pub(crate) const CORRELATION: &str = "x-acemq-correlation";
    pub(crate) const CAUSATION: &str = "x-acemq-causation";
    pub(crate) const ATTEMPT: &str = "x-acemq-attempt";
    pub(crate) const FIRST_SEEN: &str = "x-acemq-first-seen";
    pub(crate) const ORIGIN: &str = "x-acemq-origin";
    pub(crate) const ERROR: &str = "x-acemq-error";
    pub(crate) const CLAIM: &str = "x-acemq-claim";
    pub(crate) const ROUTE: &str = "x-acemq-route";
    pub(crate) const ROUTE_POSITION: &str = "x-acemq-route-position";
    pub(crate) const ROUTE_ID: &str = "x-acemq-route-id";

    pub(crate) const REPLY_TO: &str = "acemq-reply-to";
    /// On a reply: why the responder failed (wire contract, section 9.4).
    pub(crate) const RESPONDER_ERROR: &str = "acemq-error";
    pub(crate) const ROUTING_SLIP: &str = "acemq-routing-slip";
    pub(crate) const REPLAYED_FROM: &str = "acemq-replayed-from";
    pub(crate) const REPLAYED_AT: &str = "acemq-replayed-at";
    pub(crate) const REPLAY_COUNT: &str = "acemq-replay-count";
    /// The replay count's name before the prefix was divided; read, never written.
    pub(crate) const LEGACY_REPLAY_COUNT: &str = "x-acemq-replay-count";

    /// What tools of other stacks look for on a message that was set aside.
    pub(crate) const EXCEPTION_MESSAGE: &str = "x-exception-message";
    pub(crate) const EXCEPTION_TYPE: &str = "x-exception-type";
    pub(crate) const ORIGINAL_EXCHANGE: &str = "x-original-exchange";
    pub(crate) const ORIGINAL_ROUTING_KEY: &str = "x-original-routing-key";

    /// Whether this is a replay stamp under the prefix it had before the prefix was divided.
    pub(crate) fn is_legacy_replay(name: &str) -> bool {
        matches!(name, "x-acemq-replayed-from" | "x-acemq-replayed-at" | LEGACY_REPLAY_COUNT)
    }

    /// Whether the broker owns this header: visible on read, never copied onto a republish.
    pub(crate) fn is_broker_owned(name: &str) -> bool {
        matches!(name, "x-death" | "x-delivery-count" | "x-acquired-count")
            || name.starts_with("x-first-death-")
            || name.starts_with("x-last-death-")
    }
}
