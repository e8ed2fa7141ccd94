//! How a step fails, and why a saga did.

use std::{fmt, sync::Arc, time::Duration};

use crate::error::{BoxError, with_causes};

/// A failure of a step or of a compensation. Every error converts into one that says "not done".
#[derive(Debug)]
pub struct StepError {
    kind: Kind,
    source: BoxError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    NotDone,
    Unknown,
    Final,
}

impl StepError {
    /// The step has had no effect: it is tried again by its policy, and then not compensated.
    pub fn not_done(error: impl Into<BoxError>) -> Self {
        Self { kind: Kind::NotDone, source: error.into() }
    }

    /// The step may have had an effect, as after a timeout of a call: it is tried again by its
    /// policy, and then compensated with the steps before it.
    pub fn unknown(error: impl Into<BoxError>) -> Self {
        Self { kind: Kind::Unknown, source: error.into() }
    }

    /// The step has had no effect and never will: it is not tried again, and not compensated.
    pub fn fatal(error: impl Into<BoxError>) -> Self {
        Self { kind: Kind::Final, source: error.into() }
    }

    /// Returns whether the step may have had an effect.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.kind == Kind::Unknown
    }

    pub(super) fn is_final(&self) -> bool {
        self.kind == Kind::Final
    }

    pub(super) fn into_failure(self) -> SagaFailure {
        let unknown = self.is_unknown();
        SagaFailure::Step {
            text: with_causes(&*self.source),
            source: Some(self.source.into()),
            unknown,
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::not_done(error)
    }
}

/// Why a saga did not complete, or why a compensation failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SagaFailure {
    /// The step said so.
    Step {
        /// The error with its causes.
        text: String,
        /// The error itself; none where it was read from a journal.
        source: Option<Source>,
        /// Whether the step may have had an effect all the same.
        unknown: bool,
    },
    /// The step panicked; it may have had an effect.
    Panicked {
        /// What the panic said.
        text: String,
    },
    /// The step did not end within its time; it may have had an effect.
    TimedOut {
        /// The limit.
        after: Duration,
    },
    /// Whoever waited for the saga went away before this step began.
    Cancelled,
}

/// An error that several values share.
#[derive(Debug, Clone)]
pub struct Source(Arc<dyn std::error::Error + Send + Sync>);

impl From<BoxError> for Source {
    fn from(error: BoxError) -> Self {
        Self(error.into())
    }
}

impl Source {
    /// Returns the error, for a look at its type.
    #[must_use]
    pub fn get(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl SagaFailure {
    /// Returns whether the step may have had an effect, so that it is compensated.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Step { unknown, .. } => *unknown,
            Self::Panicked { .. } | Self::TimedOut { .. } => true,
            Self::Cancelled => false,
        }
    }
}

impl fmt::Display for SagaFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { text, .. } => f.write_str(text),
            Self::Panicked { text } => write!(f, "it panicked: {text}"),
            Self::TimedOut { after } => write!(f, "it did not end within {after:?}"),
            Self::Cancelled => f.write_str("the caller went away"),
        }
    }
}

impl std::error::Error for SagaFailure {}
