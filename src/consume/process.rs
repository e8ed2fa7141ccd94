//! The typed part of handling a message, behind a type that is the same for all.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
};

use futures::{FutureExt, future::BoxFuture};
use tokio_util::sync::CancellationToken;

use super::{claim::Claims, decide::Outcome, handler::Handler};
use crate::{
    error::with_causes,
    message::{Decoder, Envelope, Message, Received},
};

/// How the handling of a message ended.
#[derive(Debug)]
pub(crate) enum Handling {
    /// It was handled, and this is what became of it.
    Done(Outcome),
    /// It was handled before.
    Duplicate,
    /// Another consumer is handling it.
    InProgress,
    /// The consumer stopped before anything was known.
    Stopped,
}

/// Handles messages.
pub(crate) trait Process: Send + Sync + 'static {
    /// Decodes and handles. A panic of the handler or the decoder is an outcome; what else the
    /// application brought, such as a store, may still panic.
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling>;
}

/// A decoder and a handler for payloads of type `T`.
pub(super) struct Typed<T, H> {
    pub(super) decoder: Arc<dyn Decoder<T>>,
    pub(super) handler: H,
}

impl<T: Send + 'static, H: Handler<T>> Process for Typed<T, H> {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        let handling = async move {
            let payload = match decode(&*self.decoder, &received) {
                Ok(payload) => payload,
                Err(undecodable) => return undecodable,
            };
            match self.handler.handle(Message::new(payload, received)).await {
                Ok(()) => Outcome::Ack,
                Err(error) => error.into_outcome(),
            }
        };
        catching_panics(handling).map(Handling::Done).boxed()
    }
}

/// Decodes a body, or says why not.
pub(crate) fn decode<T: 'static>(
    decoder: &dyn Decoder<T>,
    received: &Received,
) -> Result<T, Outcome> {
    let content_type = received.properties.content_type.as_deref();
    if !decoder.accepts(content_type) {
        let found = content_type.unwrap_or_default();
        return Err(Outcome::Undecodable(format!("content type `{found}` is not accepted")));
    }
    decoder.decode(&received.body).map_err(|error| Outcome::Undecodable(with_causes(&*error)))
}

/// Turns a panic of the application's code into an outcome.
pub(crate) async fn catching_panics(handling: impl Future<Output = Outcome>) -> Outcome {
    caught("the handler", handling).await.unwrap_or_else(Outcome::Panic)
}

/// Processes a message, whatever the application's code does: one whose delivery was dropped by a
/// panic would hold its place in the prefetch until the channel ends.
pub(super) async fn catching(process: &dyn Process, received: Arc<Received>) -> Handling {
    let processing = async { process.process(received).await };
    let panicked = |text| Handling::Done(Outcome::Panic(text));
    caught("what handles it", processing).await.unwrap_or_else(panicked)
}

/// Awaits the application's code; its panic becomes a text that says who it was.
async fn caught<T>(who: &str, code: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(code).catch_unwind().await.map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("{who} panicked: {}", text.unwrap_or("no text"))
    })
}

/// Handles under a claim, so that a duplicate has no effect.
pub(super) struct Idempotent {
    pub(super) inner: Box<dyn Process>,
    pub(super) claims: Claims,
    pub(super) stop: CancellationToken,
    pub(super) identity: IdentityCheck,
}

impl Process for Idempotent {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        if !self.identity.of(&received) {
            return self.inner.process(received);
        }
        async move {
            let id = received.envelope.id().to_owned();
            self.claims.handle(&id, &self.stop, self.inner.process(received)).await
        }
        .boxed()
    }
}

/// Whether messages can be recognised at all, said once where they cannot.
///
/// The id of a message without one is made up for each delivery, so a claim on it would recognise
/// nothing. One that no store can hold, which only a foreign sender writes, is as none.
#[derive(Debug, Default)]
pub(crate) struct IdentityCheck {
    warned: OnceLock<()>,
}

impl IdentityCheck {
    pub(crate) fn of(&self, received: &Received) -> bool {
        let id = received.envelope.id();
        let has_identity =
            Envelope::has_identity(&received.properties) && id.len() <= 255 && !id.contains('\0');
        if !has_identity {
            self.warned.get_or_init(|| {
                let queue = received.queue.as_str();
                tracing::warn!(queue, "messages without an id cannot be recognised as duplicates");
            });
        }
        has_identity
    }
}
