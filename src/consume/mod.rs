//! Consuming: what a handler answers, and what becomes of the message.
//!
//! A [`Consumer`] takes messages from one queue and gives each to a handler. The handler's answer
//! is a value: `Ok` acknowledges; an error tries again by the [`RetryPolicy`] and then
//! dead-letters; [`ResultExt`] turns an error into another answer. A panic is caught and
//! dead-letters the message; a body that cannot be decoded is parked.
//!
//! | In the handler | Meaning | Counts an attempt |
//! |---|---|---|
//! | `Ok(())` | acknowledge | – |
//! | `call().await?` | try again by the policy, then dead-letter | yes |
//! | `call().await.retry_after(d)?` | try again after `d` | yes |
//! | `parse(..).reject()?` | dead-letter now | – |
//! | `check(..).park()?` | set aside for a person | – |
//! | `lock(..).defer(d)?` | again after `d` | no |
//! | panic | caught, dead-letter now | – |
//!
//! A message leaves its queue only when its next place has it: a retry, a dead letter and a parked
//! message are published as a confirmed, mandatory copy first, and the original is acknowledged
//! after that. If the copy does not land, the original goes back.
//!
//! Messages are delivered **at least once**. With an idempotency store
//! ([`ConsumerBuilder::idempotent`]) a message that was handled is recognised when it comes again,
//! and acknowledged without running the handler.
//!
//! How it fits together: `subscription` keeps a consumer subscribed over every loss and hands
//! deliveries to `worker`; `process` decodes and runs the handler, under a `claim` where the
//! consumer is idempotent; the worker then asks `decide`, a pure function, and carries the step
//! out with the help of `set_aside`.

mod builder;
mod claim;
mod consumer;
mod counters;
mod decide;
mod handler;
mod health;
mod insist;
mod next_hop;
mod onward;
mod places;
mod process;
mod replay;
mod retry_policy;
mod set_aside;
mod subscription;
#[cfg(test)]
mod vectors;
mod worker;

pub use builder::ConsumerBuilder;
pub use consumer::{Consumer, ConsumerState};
pub use counters::ConsumerStats;
pub use handler::{Handler, HandlerError, HandlerResult, ResultExt};
pub use next_hop::NextHop;
pub use replay::{
    Death, ReplayBuilder, ReplayCandidate, ReplayEnd, ReplayFilter, ReplayProgress, ReplayReport,
};
pub use retry_policy::RetryPolicy;

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) use claim::purge_until;
pub(crate) use counters::Counter;
pub(crate) use decide::{Outcome, sets_aside};
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) use insist::insist;
pub(crate) use onward::send_on;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) use process::IdentityCheck;
pub(crate) use process::{Handling, Process, catching_panics, decode};
pub(crate) use set_aside::{dead_letter, park};
pub(crate) use worker::receive;
