//! Ordered queues: order per key, and many keys at once.
//!
//! A queue is divided into partitions, each a queue of its own. A message's key decides its
//! partition, so that all messages of a key are in one queue in the order in which they were sent,
//! and one consumer at a time handles them.
//!
//! How it fits together: `partitioning` is the rule from key to partition, `layout` says what is
//! declared, `partition` consumes one of them in order, `lanes` lets different keys of it run side
//! by side, and `handle` is what an application holds.

mod builder;
mod failure;
mod handle;
mod health;
mod lanes;
mod layout;
mod partition;
mod partitioning;

pub use builder::OrderedBuilder;
pub use failure::{OnFailure, Then};
pub use handle::{OrderedQueue, PartitionState, PartitionStats};
pub use layout::OrderedLayout;
pub use partitioning::Partitioning;
