//! What travels: a [`Message`] is a typed payload with its [`Envelope`], carried in AMQP headers.
//!
//! The wire format is the AceMQ family's, to the byte (wire contract, sections 1 to 3, 8, 11 and
//! 15): a Java, Go, Python, Ruby or .NET service on the same broker reads what this module writes.
//! Reading is lenient: no header, however malformed, makes a message undeliverable.

mod codec;
mod envelope;
mod headers;
mod itinerary;
mod names;
mod properties;
#[cfg(test)]
mod random_slips;
#[cfg(test)]
pub(crate) mod random_tables;
mod received;
mod replay_stamp;
mod routing_slip;
mod slip;
#[cfg(test)]
mod slip_vectors;
#[cfg(test)]
pub(crate) mod vectors;

pub use codec::{BytesCodec, Codec, Decoder, Encoder, JsonCodec, TextCodec};
pub use envelope::Envelope;
pub use headers::{HeaderValue, Headers};
pub use itinerary::{InvalidItinerary, Itinerary, Stop};
pub use received::Message;
pub use replay_stamp::ReplayStamp;
pub use routing_slip::RoutingSlip;

pub(crate) use names::header;
pub(crate) use properties::Properties;
pub(crate) use received::Received;
pub(crate) use replay_stamp::Attempts;
pub(crate) use {routing_slip::check_step_name, slip::Slip};
