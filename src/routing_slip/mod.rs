//! Routing slips: a route that travels in the message, where each message has its own.
//!
//! An [`Itinerary`](crate::Itinerary) names the stops that remain and those that are done. A service
//! that is a stop knows nothing of the others: [`AceMq::stop`](crate::AceMq::stop) runs its handler,
//! stamps the slip and forwards the message to the next stop, confirmed and mandatory, before the
//! message at hand is acknowledged. A handler may revise the stops that remain, and may leave
//! behind what undoes its work: when a later stop gives the message up, the slip travels back
//! through the stops that are done, in reverse.
//!
//! How it fits together: `answer` is what a handler returns, `way` says where the message goes
//! after it, `undo` is what stops leave behind, `process` runs the handler and sends the message on
//! or back, and `stop` is what an application starts and holds.

mod answer;
mod process;
mod stop;
mod undo;
mod way;

pub use answer::{Forward, StopHandler};
pub use stop::{SlipStop, SlipStopBuilder, SlipStopStats};
