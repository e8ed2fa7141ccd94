//! What the handler of a stop returns.

use std::fmt;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Serialize;

use super::undo::Undo;
use crate::{
    consume::HandlerError,
    error::BoxError,
    message::{Itinerary, Message},
};

/// The answer of a stop: the payload as it goes on, and what becomes of the route.
///
/// # Examples
///
/// ```
/// use acemq::Forward;
///
/// // The next stop, with the same payload.
/// let same = Forward::unchanged();
/// // Another payload, and one more stop before the others.
/// let more = Forward::json(&42)?.revise(|route| route.insert_next("audit", "policy.audit"));
/// // No further.
/// let end = Forward::end();
/// # let _ = (same, more, end);
/// # Ok::<_, acemq::BoxError>(())
/// ```
#[must_use = "a stop forwards what its handler returns"]
pub struct Forward {
    pub(super) payload: Option<(String, Bytes)>,
    pub(super) revise: Option<Revise>,
    pub(super) undo: Option<Undo>,
    pub(super) ends: bool,
}

type Revise = Box<dyn FnOnce(Itinerary) -> Itinerary + Send>;

impl Forward {
    /// Forwards the message with the payload that it came with, byte for byte.
    pub fn unchanged() -> Self {
        Self { payload: None, revise: None, undo: None, ends: false }
    }

    /// Forwards another payload, as JSON.
    ///
    /// # Errors
    ///
    /// What serde reports; nothing is forwarded then.
    pub fn json<T: Serialize + ?Sized>(payload: &T) -> Result<Self, BoxError> {
        let body = serde_json::to_vec(payload)?;
        Ok(Self::bytes("application/json", body))
    }

    /// Forwards another payload, as bytes.
    pub fn bytes(content_type: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { payload: Some((content_type.into(), body.into())), ..Self::unchanged() }
    }

    /// Ends the route here, whatever stops remain. This is no failure.
    pub fn end() -> Self {
        Self { ends: true, ..Self::unchanged() }
    }

    /// Changes the stops that remain after this one: add, skip or replace them. The function gets
    /// the route with this stop already done; what is done it cannot change.
    pub fn revise(mut self, revise: impl FnOnce(Itinerary) -> Itinerary + Send + 'static) -> Self {
        self.revise = Some(Box::new(revise));
        self
    }

    /// Leaves behind what undoes this stop: where to send it, and the data that it needs.
    ///
    /// If a later stop dead-letters the message, the slip travels back: the data goes to this
    /// address, after those of the stops that were done later. Data counts toward the size limit
    /// of the slip.
    pub fn undo_at(
        mut self,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
        data: impl Into<String>,
    ) -> Self {
        self.undo = Some(Undo {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            name: None,
            data: data.into(),
        });
        self
    }
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward")
            .field("changes_payload", &self.payload.is_some())
            .field("revises", &self.revise.is_some())
            .field("undo", &self.undo)
            .field("ends", &self.ends)
            .finish()
    }
}

/// Handles messages at a stop.
///
/// Every `Fn(Message<T>) -> impl Future<Output = Result<Forward, HandlerError>>` is one.
pub trait StopHandler<T>: Send + Sync + 'static {
    /// Handles one message and says what goes on.
    fn handle(&self, message: Message<T>) -> BoxFuture<'static, Result<Forward, HandlerError>>;
}

impl<T, F, Fut> StopHandler<T> for F
where
    T: Send + 'static,
    F: Fn(Message<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Forward, HandlerError>> + Send + 'static,
{
    fn handle(&self, message: Message<T>) -> BoxFuture<'static, Result<Forward, HandlerError>> {
        Box::pin(self(message))
    }
}
