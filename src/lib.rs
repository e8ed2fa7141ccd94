//! acemq
#![forbid(unsafe_code)]

mod backoff;
mod clock;
pub mod consume;
mod error;
pub mod message;
pub mod topology;
mod transport;

pub use consume::RetryPolicy;
pub use error::{BoxError, Error, Result};
pub use message::{
    BytesCodec, Codec, Envelope, HeaderValue, Headers, InvalidItinerary, Itinerary, JsonCodec,
    Message, ReplayStamp, RoutingSlip, Stop, TextCodec,
};
pub use topology::{Binding, Exchange, ExchangeKind, Overflow, Queue, QueueKind, Topology};
