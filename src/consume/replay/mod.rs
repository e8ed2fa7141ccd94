//! Replay: moving messages from a dead-letter or parked queue back to work.
//!
//! # The problem
//!
//! A handler had a bug, or a database was down for longer than the retries lasted, and some
//! thousand messages are in `{queue}.dlq`. Moving them back by hand loses some (acknowledged before
//! the copy was safe), repeats some for ever (moved, failed and moved again in the same pass) and
//! changes others (properties forgotten, attempts spent before the first try). And a filter that
//! gives declined messages back at once meets the same message again, and never the next.
//!
//! # When not to use it
//!
//! For failures that pass by themselves: that is what a [`RetryPolicy`](crate::RetryPolicy) is for.
//! A replay is somebody's decision, after a look at the messages. To correct a message, publish
//! another one: a replay moves what is there.
//!
//! # What happens to a message
//!
//! | Message | In this pass |
//! |---|---|
//! | matches | its copy is published, confirmed and mandatory; only then is it acknowledged |
//! | does not match | held until the pass ends, then back in its place |
//! | handled before, says the idempotency store | held likewise; see [`ReplayBuilder::releasing`] |
//! | its copy does not land | back in its place, and the pass ends |
//! | moved by this pass, and here again | back in its place, and the pass ends |
//!
//! A message is in its old place, in the new one, or, where a pass was interrupted between the
//! confirm and the acknowledgement, in both with the same id: at least once, never lost.
//!
//! While a pass runs, the messages it holds are out of sight for others. A classic queue, as
//! `{queue}.dlq` and `{queue}.parked` are, takes them back where they were; a quorum queue takes
//! them back at its head or, without a delivery limit, at its end.
//!
//! The parts: `builder` holds the options, `filter` and `candidate` decide about one message and
//! show it, `pass` walks the queue, `report` says how it went.

mod builder;
mod candidate;
mod filter;
mod pass;
mod report;
#[cfg(test)]
mod tests;

pub use builder::ReplayBuilder;
pub use candidate::{Death, ReplayCandidate};
pub use filter::ReplayFilter;
pub use report::{ReplayEnd, ReplayProgress, ReplayReport};
