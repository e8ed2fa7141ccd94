//! Which of the two slip forms leads a message.

use super::{Envelope, InvalidItinerary, Itinerary, RoutingSlip};

/// The slip that a message carries, in the form it came with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slip {
    /// Carries its addresses.
    Itinerary(Itinerary),
    /// Names the steps of a declared pipeline.
    Route(RoutingSlip),
}

impl Slip {
    /// Reads the slip of a message: the itinerary where both forms are present, none without any.
    ///
    /// An itinerary that cannot be read is an error even beside a good route, since guessing the
    /// route could run the wrong step.
    pub(crate) fn of(envelope: &Envelope) -> Result<Option<Self>, InvalidItinerary> {
        if let Some(itinerary) = Itinerary::from(envelope.headers())? {
            return Ok(Some(Self::Itinerary(itinerary)));
        }
        Ok(envelope.route().cloned().map(Self::Route))
    }
}
