//! acemq
#![forbid(unsafe_code)]

mod backoff;
mod clock;
mod error;
pub mod idempotency;
pub mod message;
pub mod outbox;
mod store;
pub mod topology;
mod transport;

pub use error::{BoxError, Error, Result};
pub use idempotency::IdempotencyStore;
pub use message::{
    BytesCodec, Codec, Envelope, HeaderValue, Headers, InvalidItinerary, Itinerary, JsonCodec,
    Message, ReplayStamp, RoutingSlip, Stop, TextCodec,
};
pub use outbox::{OutboxRecord, OutboxRelay, OutboxStore, OutboxTarget, RelayReport, RunningRelay};
pub use topology::{Binding, Exchange, ExchangeKind, Overflow, Queue, QueueKind, Topology};
