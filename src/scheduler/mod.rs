//! Scheduling: a message that goes out later, held by the broker.
//!
//! A [`Scheduler`] publishes a message with its address and its time into a ladder of queues that
//! hold it, hop by hop, until it is due. Nothing is kept in the process: a scheduled message
//! survives the restart of application and broker.
//!
//! - The ladder of the AceMQ family ([`Ladder::Family`], the default) is shared with the other
//!   languages: five rungs, from an hour to a second. After each hop a scheduler looks at the
//!   message and sends it to the next rung, so that a day is 24 hops.
//! - The ladder of this crate ([`Ladder::Binary`]) has a rung for each power of two of seconds. The
//!   broker moves a message from rung to rung by itself; a process sees it when it is due.
//!
//! How it fits together: `ladder` says which rung comes next and what is declared, `parcel` writes
//! a message's address and time into headers and reads them back, `control` handles what comes out
//! of the ladder, and `handle` is what an application holds.

mod binary;
mod control;
mod handle;
mod ladder;
mod parcel;
mod stats;
#[cfg(test)]
mod vectors;

pub use handle::{Scheduler, SchedulerBuilder};
pub use ladder::Ladder;
pub use stats::SchedulerStats;
