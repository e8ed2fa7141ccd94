//! The AMQP properties that travel beside a body.

use super::{Envelope, Headers};
use crate::error::cut;

/// The properties of a message as they are on the wire, headers included.
///
/// Every property that a peer set is kept over retries, dead letters and replays; only
/// `expiration` and `user_id` have rules of their own (see [`Properties::for_republish`]).
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Properties {
    pub(crate) headers: Headers,
    pub(crate) message_id: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    /// Delivery mode 2; `false` is mode 1.
    pub(crate) persistent: bool,
    pub(crate) priority: Option<u8>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) reply_to: Option<String>,
    /// The message's own TTL: milliseconds as text.
    pub(crate) expiration: Option<String>,
    /// Seconds since the epoch.
    pub(crate) timestamp: Option<u64>,
    pub(crate) kind: Option<String>,
    pub(crate) user_id: Option<String>,
    pub(crate) app_id: Option<String>,
}

impl Properties {
    /// The properties for a copy that this library publishes for somebody else's message.
    ///
    /// `expiration` is dropped, since the broker would take the smaller of it and the queue's
    /// TTL; `user_id` is dropped, since the broker refuses a copy that names another user. The
    /// headers are the caller's to fill in.
    pub(crate) fn for_republish(&self) -> Self {
        Self { headers: Headers::new(), expiration: None, user_id: None, ..self.clone() }
    }

    /// Writes an envelope into the headers and the message id, which is always set.
    pub(crate) fn carrying(self, envelope: &Envelope) -> Self {
        // A foreign id may be longer than the property holds; the header then has the whole one.
        let message_id = Some(cut(envelope.id(), 255));
        Self { headers: envelope.to_headers(), message_id, ..self }
    }

    /// The short texts with the names that an error gives them.
    pub(crate) fn short_texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("message_id", &self.message_id),
            ("content_type", &self.content_type),
            ("content_encoding", &self.content_encoding),
            ("correlation_id", &self.correlation_id),
            ("reply_to", &self.reply_to),
            ("expiration", &self.expiration),
            ("type", &self.kind),
            ("user_id", &self.user_id),
            ("app_id", &self.app_id),
        ]
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }

    /// An upper bound of the bytes the content header takes on the wire.
    pub(crate) fn encoded_len(&self) -> usize {
        let texts: usize = self.short_texts().map(|(_, text)| 1 + text.len()).sum();
        32 + texts + self.headers.encoded_len()
    }
}
