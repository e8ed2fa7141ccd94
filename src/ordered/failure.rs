//! What becomes of a partition whose handler fails.

use std::time::Duration;

use crate::error::{Error, Result};

/// How long a message may be held for its retries: well below the half hour after which the broker
/// takes a delivery back.
const LONGEST_HOLD: Duration = Duration::from_mins(10);

/// What happens when a handler fails.
///
/// `.reject()` and `.park()` set the one message aside and go on, whatever is chosen here: the
/// handler has decided that its key can do without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnFailure {
    /// Halts the partition: the message stays first in its queue, nothing behind it is handled,
    /// until [`resume`](super::OrderedQueue::resume).
    #[default]
    Stop,
    /// Tries the message again where it is, so that nothing overtakes it.
    RetryInPlace {
        /// How often it is handled, the first time included. From 1.
        attempts: u32,
        /// The pause between two attempts. All pauses together take 10 minutes at most.
        delay: Duration,
        /// What happens after the last attempt.
        then: Then,
    },
    /// Dead-letters the message and goes on with the next one: its key has a gap.
    Skip,
}

/// What happens when all attempts have failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Then {
    /// As [`OnFailure::Stop`].
    Stop,
    /// As [`OnFailure::Skip`].
    Skip,
}

impl OnFailure {
    pub(super) fn check(self) -> Result<()> {
        let Self::RetryInPlace { attempts, delay, .. } = self else { return Ok(()) };
        if attempts == 0 {
            return Err(Error::invalid("on_failure", "0 attempts", "would handle nothing"));
        }
        if delay.saturating_mul(attempts - 1) > LONGEST_HOLD {
            let all = format!("{attempts} attempts, {delay:?} apart");
            let reason =
                "hold a message for more than 10 minutes, which the broker does not allow for long";
            return Err(Error::invalid("on_failure", all, reason));
        }
        Ok(())
    }

    /// What to do after this attempt: the pause before the next one, or the end.
    pub(super) fn after(self, attempt: u32) -> std::result::Result<Duration, Then> {
        match self {
            Self::Stop => Err(Then::Stop),
            Self::Skip => Err(Then::Skip),
            Self::RetryInPlace { attempts, delay, .. } if attempt < attempts => Ok(delay),
            Self::RetryInPlace { then, .. } => Err(then),
        }
    }
}
