//! Questions and answers: a request that gets its reply, or the reason why there is none.
//!
//! # The problem
//!
//! A service asks another one over the broker and waits. Written by hand, that goes wrong in known
//! ways: calls that timed out stay in the map for ever, an answer that comes late is taken for the
//! answer to the next question, a lost connection leaves callers hanging, a failing responder is
//! told from a missing one only by the time it takes, and requests are worked on whose callers have
//! long gone.
//!
//! Do not use it where nobody has to wait: a message and a consumer need no answer and survive
//! hours of outage. Do not use it between services that can reach each other by HTTP or gRPC and
//! gain nothing from the broker.
//!
//! # Flow
//!
//! 1. A [`Requester`] owns one reply queue. A call is entered under a fresh UUID, then the request
//!    is published with it, confirmed and mandatory, with the call's timeout as its TTL.
//! 2. A [`Responder`] takes the request, runs the handler, publishes the reply to the reply address
//!    in the request, confirmed and mandatory, and acknowledges the request after that.
//! 3. The reply ends exactly the call of its correlation. Any other reply is dropped and counted.
//!
//! | What fails | What the caller gets | What becomes of the request |
//! |---|---|---|
//! | no queue takes the request | `Unroutable`, at once | it was not sent |
//! | nobody answers in time | `TimedOut` | expires; one that is being handled goes on |
//! | the handler (error, panic) | `ResponderFailed`, at once | dead-lettered, not retried |
//! | the request cannot be decoded | `ResponderFailed`, at once | parked |
//! | the answer cannot be encoded or sent | `ResponderFailed`, at once | dead-lettered |
//! | the answer cannot be decoded | `Undecodable` | it was handled |
//! | the responder's process | the answer of the next one, or `TimedOut` | delivered again |
//! | the connection, before the confirm | `ConnectionLost` | it may be handled |
//! | the connection, later | its answer, after the reconnect | as usual |
//! | the reply queue (deleted, expired) | `ConnectionLost`, as soon as it shows | as usual |
//! | the requester's process | – | its reply is returned, counted and dropped |
//! | the reply cannot be published | the answer of a retry, or `TimedOut` | retried by the policy |
//!
//! A request may be handled twice: the responder can die after the handler's work and before the
//! acknowledgement. Where that matters, use [`ResponderBuilder::idempotent`], and repeat a call
//! only if [`RequestError::may_have_been_handled`] says that it is harmless.
//!
//! RabbitMQ's direct reply-to (`amq.rabbitmq.reply-to`) is not offered for requests: it ties every
//! request to one channel and loses the answers with it. Requests of other programs that use it
//! are answered like any others.

mod answering;
mod call;
mod error;
mod gather;
mod pending;
mod replies;
mod reply;
mod requester;
mod responder;
mod responder_error;
mod stats;
#[cfg(test)]
mod vectors;

pub use call::CallOptions;
pub use error::RequestError;
pub use gather::Answers;
pub use reply::PendingReply;
pub use requester::Requester;
pub use responder::{Responder, ResponderBuilder};
pub use responder_error::ResponderError;
pub use stats::{RequesterStats, ResponderStats};
