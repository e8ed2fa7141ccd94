//! How a call fails.

use std::time::Duration;

use crate::error::{BoxError, Error};

/// Why a request got no answer, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nobody answered in time. The request may have been handled, or be handled still; with the
    /// default options it is not begun any more.
    #[error("no answer within {waited:?}")]
    TimedOut {
        /// The timeout of the call.
        waited: Duration,
    },
    /// Somebody answered that it could not be done. Trying again is unlikely to help.
    #[error("the responder failed: {error_type}: {message}")]
    ResponderFailed {
        /// The stable name of the failure, for code to branch on; `Error` where the responder
        /// gives none.
        error_type: String,
        /// The text for people.
        message: String,
    },
    /// No queue takes such requests: nobody listens there, or the routing key is wrong.
    #[error("no queue takes requests for exchange `{exchange}`, routing key `{routing_key}`")]
    Unroutable {
        /// The exchange published to; empty for the default exchange.
        exchange: String,
        /// The routing key published with.
        routing_key: String,
    },
    /// The answer came and could not be decoded.
    #[error("cannot decode an answer of content type `{content_type}`")]
    Undecodable {
        /// The answer's content type; empty where it has none.
        content_type: String,
        /// What the codec reported.
        #[source]
        source: BoxError,
    },
    /// The connection was lost before the broker had confirmed the request, or the reply queue is
    /// gone with the answers in it. The request may have been handled.
    #[error("the connection or the reply queue was lost; the request may have been handled")]
    ConnectionLost,
    /// The requester or its handle was closed.
    #[error("closed")]
    Closed,
    /// The request could not be sent, for the reason that the source gives.
    #[error("the request could not be sent")]
    NotSent(#[source] Error),
}

impl RequestError {
    /// Returns whether the failure leaves open that a responder handles the request.
    ///
    /// Send it again only if handling it twice is harmless.
    #[must_use]
    pub fn may_have_been_handled(&self) -> bool {
        match self {
            Self::TimedOut { .. }
            | Self::ResponderFailed { .. }
            | Self::Undecodable { .. }
            | Self::ConnectionLost
            | Self::Closed => true,
            Self::Unroutable { .. } => false,
            Self::NotSent(error) => error.may_have_been_published(),
        }
    }

    /// What a failed publish means for a call that may wait for `timeout`.
    pub(super) fn of_publish(error: Error, timeout: Duration) -> Self {
        match error {
            Error::Unroutable { exchange, routing_key, .. } => {
                Self::Unroutable { exchange, routing_key }
            }
            // A publish is given what is left of the timeout, so no answer came in it either.
            Error::ConfirmTimeout { .. } => Self::TimedOut { waited: timeout },
            Error::Interrupted { .. } => Self::ConnectionLost,
            Error::Closed => Self::Closed,
            other => Self::NotSent(other),
        }
    }
}
