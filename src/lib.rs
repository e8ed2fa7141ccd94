//! acemq
#![forbid(unsafe_code)]

mod backoff;
mod clock;
mod connection;
pub mod consume;
mod error;
pub mod idempotency;
pub mod message;
pub mod outbox;
mod publish;
mod store;
pub mod topology;
mod transport;

pub use connection::{AceMq, ConnectOptions, ConnectionState, Shutdown};
pub use consume::{
    Consumer, ConsumerBuilder, ConsumerState, ConsumerStats, Handler, HandlerError, HandlerResult,
    ResultExt, RetryPolicy,
};
pub use error::{BoxError, Error, Result};
pub use message::{
    BytesCodec, Codec, Decoder, Encoder, Envelope, HeaderValue, Headers, InvalidItinerary,
    Itinerary, JsonCodec, Message, ReplayStamp, RoutingSlip, Stop, TextCodec,
};
pub use publish::{BatchOutcome, Publisher};
pub use topology::{Binding, Exchange, ExchangeKind, Overflow, Queue, QueueKind, Topology};
