//! Handlers and their answers.

use std::{future::Future, time::Duration};

use super::decide::Outcome;
use crate::{
    error::{BoxError, with_causes},
    message::Message,
};

/// Handles messages with payloads of type `T`.
///
/// Every `Fn(Message<T>) -> impl Future<Output = HandlerResult>` is a handler; implement the trait
/// on a struct that holds what the handler needs.
///
/// A handler is cancelled (its future is dropped) only when it still runs at the deadline of a
/// close; the message is then delivered again.
pub trait Handler<T>: Send + Sync + 'static {
    /// Handles one message; see the [module](crate::consume) for what each answer means.
    fn handle(&self, message: Message<T>) -> impl Future<Output = HandlerResult> + Send;
}

impl<T, F, Fut> Handler<T> for F
where
    T: Send + 'static,
    F: Fn(Message<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send,
{
    fn handle(&self, message: Message<T>) -> impl Future<Output = HandlerResult> + Send {
        self(message)
    }
}

/// The answer of a handler.
pub type HandlerResult = Result<(), HandlerError>;

/// Why a handler is not done with a message, and what should become of it.
///
/// `?` makes one from any error, which means: try again by the policy. It is not itself an error
/// type, so an answer cannot be given twice.
#[derive(Debug)]
pub struct HandlerError {
    answer: Answer,
    source: BoxError,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Retry(Option<Duration>),
    Reject,
    Park,
    Defer(Duration),
}

impl HandlerError {
    /// Tries again by the policy. This is what `?` does.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self { answer: Answer::Retry(None), source: error.into() }
    }

    /// Tries again after `delay` instead of the policy's; the policy still counts the attempt.
    pub fn retry_after(error: impl Into<BoxError>, delay: Duration) -> Self {
        Self { answer: Answer::Retry(Some(delay)), source: error.into() }
    }

    /// Dead-letters the message now: trying again cannot help.
    pub fn reject(error: impl Into<BoxError>) -> Self {
        Self { answer: Answer::Reject, source: error.into() }
    }

    /// Sets the message aside in the parked queue, for a person to look at.
    pub fn park(error: impl Into<BoxError>) -> Self {
        Self { answer: Answer::Park, source: error.into() }
    }

    /// Delivers the message again after `delay`, without counting an attempt.
    pub fn defer(error: impl Into<BoxError>, delay: Duration) -> Self {
        Self { answer: Answer::Defer(delay), source: error.into() }
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        let reason = with_causes(&*self.source);
        match self.answer {
            Answer::Retry(after) => Outcome::Retry { reason, after },
            Answer::Reject => Outcome::Reject(reason),
            Answer::Park => Outcome::Park(reason),
            Answer::Defer(delay) => Outcome::Defer(delay),
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

/// Says what an error means for the message.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use acemq::{HandlerResult, Message, ResultExt};
///
/// async fn handle(message: Message<String>) -> HandlerResult {
///     let amount: u32 = message.payload().parse().reject()?; // will never parse
///     charge(amount).await.retry_after(Duration::from_secs(5))?;
///     Ok(())
/// }
/// # async fn charge(_: u32) -> Result<(), std::io::Error> { Ok(()) }
/// ```
pub trait ResultExt<T> {
    /// Dead-letters the message now.
    ///
    /// # Errors
    ///
    /// The error, as this answer.
    fn reject(self) -> Result<T, HandlerError>;

    /// Sets the message aside in the parked queue.
    ///
    /// # Errors
    ///
    /// The error, as this answer.
    fn park(self) -> Result<T, HandlerError>;

    /// Delivers the message again after `delay`, without counting an attempt.
    ///
    /// # Errors
    ///
    /// The error, as this answer.
    fn defer(self, delay: Duration) -> Result<T, HandlerError>;

    /// Tries again after `delay` instead of the policy's.
    ///
    /// # Errors
    ///
    /// The error, as this answer.
    fn retry_after(self, delay: Duration) -> Result<T, HandlerError>;
}

impl<T, E: Into<BoxError>> ResultExt<T> for Result<T, E> {
    fn reject(self) -> Result<T, HandlerError> {
        self.map_err(HandlerError::reject)
    }

    fn park(self) -> Result<T, HandlerError> {
        self.map_err(HandlerError::park)
    }

    fn defer(self, delay: Duration) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::defer(error, delay))
    }

    fn retry_after(self, delay: Duration) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::retry_after(error, delay))
    }
}
