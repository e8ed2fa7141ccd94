//! Publishing: confirmed, mandatory and persistent by default.
//!
//! A [`Publisher`] sends payloads of one type to one exchange and routing key. A send succeeds
//! when the broker has taken responsibility for the message and put it into at least one queue;
//! everything else is an error that says whether the message may have been published anyway.
//!
//! Not for: a message that must go out if, and only if, a database transaction commits. That is
//! the outbox's job.

mod batch;
mod compose;
mod publisher;

pub use batch::BatchOutcome;
pub use publisher::Publisher;

pub(crate) use compose::{Draft, compose};
