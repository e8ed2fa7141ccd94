//! The one error type of the messaging operations.

use std::time::Duration;

/// A foreign error at the edge of this crate: a driver's, a codec's or an application's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The result of a messaging operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a messaging operation, by what the caller can do about it.
///
/// `Display` prints one level and never a password; follow [`std::error::Error::source`] for the
/// cause. [`Error::is_retryable`] and [`Error::may_have_been_published`] answer the two questions
/// that publishing code asks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option, a name or a header has a value that cannot work. Nothing was sent.
    #[error("invalid {option}: `{value}` {reason}")]
    InvalidOption {
        /// The option, field or header, as it is written in code.
        option: &'static str,
        /// The refused value, cut to a readable length.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The broker could not be reached within the time allowed for connecting.
    #[error("cannot connect to {endpoint}")]
    Connect {
        /// Host, port and virtual host; never the password.
        endpoint: String,
        /// What the last attempt reported.
        #[source]
        source: BoxError,
    },
    /// The broker refused the connection for good: wrong credentials, no such virtual host, or
    /// no permission for it. Trying again without a change cannot help.
    #[error("{endpoint} refused the connection: {reason}")]
    Refused {
        /// Host, port and virtual host; never the password.
        endpoint: String,
        /// The broker's reply text.
        reason: String,
    },
    /// The connection is down and did not come back in the time allowed. Nothing was sent.
    #[error("not connected to the broker after waiting {waited:?}; nothing was sent")]
    Disconnected {
        /// How long the operation waited for the connection.
        waited: Duration,
    },
    /// The broker blocks publishing because it is short of memory or disk. Nothing was sent.
    #[error("the broker blocks publishing ({reason}); nothing was sent")]
    Blocked {
        /// The broker's reason.
        reason: String,
    },
    /// No queue took the message: the broker returned it.
    #[error(
        "no queue is bound for routing key `{routing_key}` of exchange `{exchange}` ({reason})"
    )]
    Unroutable {
        /// The exchange published to; empty for the default exchange.
        exchange: String,
        /// The routing key published with.
        routing_key: String,
        /// The broker's reply text.
        reason: String,
    },
    /// The broker refused to take responsibility for the message, for instance because its queue
    /// is full and rejects publishes.
    #[error("the broker refused a message for exchange `{exchange}`, routing key `{routing_key}`")]
    Nacked {
        /// The exchange published to; empty for the default exchange.
        exchange: String,
        /// The routing key published with.
        routing_key: String,
    },
    /// The broker did not confirm in time: the message may have been published, or not.
    #[error("no confirm within {waited:?}; the message may have been published")]
    ConfirmTimeout {
        /// How long the publish waited.
        waited: Duration,
    },
    /// The channel or connection was lost before the answer: the operation may have happened.
    #[error(
        "the connection was lost before the broker answered ({reason}); the operation may have taken effect"
    )]
    Interrupted {
        /// What ended the channel or connection.
        reason: String,
    },
    /// An exchange or queue that the operation names does not exist.
    #[error("not found: {reason}")]
    NotFound {
        /// The broker's reply text.
        reason: String,
    },
    /// An exchange or queue exists with other properties than the ones asked for.
    #[error("{object} `{name}` exists with {argument} = {found}, but {wanted} is wanted")]
    TopologyMismatch {
        /// `queue` or `exchange`.
        object: String,
        /// Its name.
        name: String,
        /// The property or argument that differs.
        argument: String,
        /// The value asked for.
        wanted: String,
        /// The value it has.
        found: String,
    },
    /// The broker refused the operation with a reply that has no variant of its own.
    #[error("the broker refused the operation: {code} {reason}")]
    BrokerRefused {
        /// The AMQP reply code.
        code: u16,
        /// The broker's reply text.
        reason: String,
    },
    /// The operation is not offered by this transport; it is refused rather than ignored.
    #[error("not supported by {transport}: {what}")]
    Unsupported {
        /// The transport, for instance `memory://`.
        transport: &'static str,
        /// What was asked for.
        what: String,
    },
    /// A payload could not be encoded or decoded.
    #[error("cannot {action} a payload of content type `{content_type}`")]
    Codec {
        /// `encode` or `decode`.
        action: &'static str,
        /// The content type at hand.
        content_type: String,
        /// What the codec reported.
        #[source]
        source: BoxError,
    },
    /// A database operation of a store failed.
    #[error("the store could not {action}")]
    Store {
        /// The step that failed, as a verb phrase.
        action: &'static str,
        /// What the driver reported.
        #[source]
        source: BoxError,
    },
    /// A store's table does not have the shape that this version needs.
    #[error("table `{table}`: {problem}")]
    Schema {
        /// The table.
        table: String,
        /// The column or table that is missing or different.
        problem: String,
    },
    /// The handle, consumer or relay was closed by its owner.
    #[error("closed")]
    Closed,
}

impl Error {
    /// Returns whether the same call could succeed later without a change by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Disconnected { .. }
            | Self::Blocked { .. }
            | Self::Unroutable { .. }
            | Self::Nacked { .. }
            | Self::ConfirmTimeout { .. }
            | Self::Interrupted { .. }
            | Self::NotFound { .. }
            | Self::Store { .. } => true,
            Self::InvalidOption { .. }
            | Self::Refused { .. }
            | Self::TopologyMismatch { .. }
            | Self::BrokerRefused { .. }
            | Self::Unsupported { .. }
            | Self::Codec { .. }
            | Self::Schema { .. }
            | Self::Closed => false,
        }
    }

    /// Returns whether the failure leaves open that the message reached the broker.
    ///
    /// False does not mean "in no queue" for [`Nacked`](Self::Nacked) with several queues: one
    /// that had room may have kept it.
    ///
    /// Publish again with the same message id and an idempotent consumer handles it once.
    #[must_use]
    pub fn may_have_been_published(&self) -> bool {
        matches!(self, Self::ConfirmTimeout { .. } | Self::Interrupted { .. })
    }

    /// Returns whether the message itself was refused, while the broker is well and reachable.
    ///
    /// The opposite is an outage, during which every message fails the same way.
    pub(crate) fn concerns_the_message(&self) -> bool {
        match self {
            Self::InvalidOption { .. }
            | Self::Unroutable { .. }
            | Self::Nacked { .. }
            | Self::NotFound { .. }
            | Self::TopologyMismatch { .. }
            | Self::BrokerRefused { .. }
            | Self::Unsupported { .. }
            | Self::Codec { .. } => true,
            Self::Connect { .. }
            | Self::Refused { .. }
            | Self::Disconnected { .. }
            | Self::Blocked { .. }
            | Self::ConfirmTimeout { .. }
            | Self::Interrupted { .. }
            | Self::Store { .. }
            | Self::Schema { .. }
            | Self::Closed => false,
        }
    }

    /// Returns whether the broker answered an operation by closing the connection, which ends
    /// everything else on it too. AMQP numbers these replies from 500.
    pub(crate) fn closed_the_connection(&self) -> bool {
        matches!(self, Self::BrokerRefused { code: 500.., .. })
    }

    pub(crate) fn invalid(
        option: &'static str,
        value: impl std::fmt::Display,
        reason: impl Into<String>,
    ) -> Self {
        Self::InvalidOption { option, value: cut(&value.to_string(), 80), reason: reason.into() }
    }
}

/// Prints an error with its causes, for a log line or a header.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Cuts `text` to at most `max` bytes at a character boundary and marks the cut.
pub(crate) fn cut(text: &str, max: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_keeps_whole_characters_and_the_limit() {
        for max in 3..20 {
            let text = cut("añ日本語 und noch mehr", max);
            assert!(text.len() <= max, "{text} is over {max} bytes");
        }
        assert_eq!(cut("short", 80), "short");
    }

    #[test]
    fn an_outage_is_not_the_fault_of_the_message() {
        let outage = Error::Blocked { reason: "low on memory".into() };
        assert!(!outage.concerns_the_message() && outage.is_retryable());
        let own = Error::Nacked { exchange: "e".into(), routing_key: "k".into() };
        assert!(own.concerns_the_message() && !own.may_have_been_published());
    }
}
