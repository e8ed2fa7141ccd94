//! The next message of a chain, ready to go, for those who send it themselves.

use bytes::Bytes;

use crate::{
    message::{Envelope, Properties},
    publish::Draft,
};

/// What a step sends on: ready to be published, or to be put into an outbox, whose records are made
/// from it by `into()`.
#[derive(Debug, Clone, PartialEq)]
pub struct NextHop {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) envelope: Envelope,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
}

impl NextHop {
    /// Returns the exchange it goes to.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// Returns the routing key it goes under.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.routing_key
    }

    /// Returns its envelope, with the slip one step further.
    #[must_use = "the envelope carries the slip"]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Returns the content type of the body.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Returns the encoded payload.
    #[must_use = "the body is what goes on"]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    pub(crate) fn into_draft(self) -> Draft {
        let content_type = Some(self.content_type);
        Draft {
            exchange: self.exchange,
            routing_key: self.routing_key,
            mandatory: true,
            envelope: self.envelope,
            properties: Properties { content_type, persistent: true, ..Properties::default() },
            body: self.body,
        }
    }
}
