//! The broker's replies, in RabbitMQ's words, so that an error reads alike on every transport.

use crate::error::Error;

/// What errors call this transport.
pub(super) const TRANSPORT: &str = "memory://";

/// Something that RabbitMQ offers and this broker does not: refused, never ignored, because a test
/// that passes on a silently dropped option proves nothing.
pub(super) fn unsupported(what: impl Into<String>) -> Error {
    Error::Unsupported { transport: TRANSPORT, what: what.into() }
}

/// 404 for a queue.
pub(super) fn no_queue(name: &str) -> Error {
    Error::NotFound { reason: format!("NOT_FOUND - no queue '{name}' in vhost '/'") }
}

/// 404 for an exchange.
pub(super) fn no_exchange(name: &str) -> Error {
    Error::NotFound { reason: format!("NOT_FOUND - no exchange '{name}' in vhost '/'") }
}

/// What a consumer gets when its queue is deleted ("Consumer Cancel Notifications").
pub(super) fn queue_deleted(name: &str) -> Error {
    let reason = format!("consumer cancelled by the broker: queue `{name}` was deleted");
    Error::NotFound { reason }
}

/// 403.
pub(super) fn access_refused(what: impl std::fmt::Display) -> Error {
    Error::BrokerRefused { code: 403, reason: format!("ACCESS_REFUSED - {what}") }
}

/// 405 for an exclusive queue, which RabbitMQ also gives when only the `exclusive` flag differs.
pub(super) fn locked(queue: &str) -> Error {
    let reason = format!(
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. \
         It could be originally declared on another connection or the exclusive property value \
         does not match that of the original declaration."
    );
    Error::BrokerRefused { code: 405, reason }
}

/// 405 for `basic.get` on a quorum queue with a single active consumer.
pub(super) fn no_get_with_single_active(queue: &str) -> Error {
    let reason = format!(
        "RESOURCE_LOCKED - cannot obtain access to locked queue '{queue}' in vhost '/'. basic.get \
         operations are not supported by quorum queues with single active consumer"
    );
    Error::BrokerRefused { code: 405, reason }
}

/// 406 with a text of its own.
pub(super) fn precondition_failed(what: impl std::fmt::Display) -> Error {
    Error::BrokerRefused { code: 406, reason: format!("PRECONDITION_FAILED - {what}") }
}

/// 406 for an argument whose value cannot work.
pub(super) fn invalid_argument(
    argument: &str,
    queue: &str,
    problem: impl std::fmt::Display,
) -> Error {
    precondition_failed(format_args!(
        "invalid arg '{argument}' for queue '{queue}' in vhost '/': {problem}"
    ))
}

/// Text as Erlang prints a binary: quoted, or byte by byte where it is not plain.
pub(super) fn erlang_binary(text: &str) -> String {
    let is_plain =
        text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
    if is_plain && !text.is_empty() {
        return format!("<<\"{text}\">>");
    }
    let bytes: Vec<_> = text.bytes().map(|byte| byte.to_string()).collect();
    format!("<<{}>>", bytes.join(","))
}

/// The end of an operation whose channel or connection is gone.
pub(super) fn interrupted(reason: impl Into<String>) -> Error {
    Error::Interrupted { reason: reason.into() }
}

/// The channel that an operation belongs to is closed.
pub(super) fn channel_closed() -> Error {
    interrupted("the channel is closed")
}
