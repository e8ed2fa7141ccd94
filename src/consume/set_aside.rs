//! Copies of a message for its next place: another attempt, the dead letters, the parked ones.

use super::decide::Cause;
use crate::{
    connection::Core,
    error::{Error, Result, cut},
    message::{Envelope, Properties, Received, header},
    topology::standard,
    transport::Outgoing,
};

/// The longest error text that goes into a header.
const MAX_ERROR: usize = 8 * 1024;

/// The room that headers have at RabbitMQ's default frame size. A connection with a smaller one
/// refuses a copy by itself.
const HEADER_ROOM: usize = 128 * 1024 - 64;

/// The room that must be left before headers that are only for others are added.
const COURTESY_ROOM: usize = 1024;

/// Publishes a copy to `queue` and returns when the broker has it there.
///
/// Bytes, id, application headers and properties are the original's; see
/// [`Properties::for_republish`] for the two exceptions.
pub(super) async fn publish_copy(
    core: &Core,
    original: &Received,
    envelope: &Envelope,
    queue: &str,
) -> Result<()> {
    let message = Outgoing {
        exchange: String::new(),
        routing_key: queue.to_owned(),
        mandatory: true,
        properties: Properties {
            persistent: true,
            ..original.properties.for_republish().carrying(envelope)
        },
        body: original.body.clone(),
    };
    core.publish_again(message).await
}

/// Publishes a copy to a set-aside queue, which is declared again if it is missing.
pub(super) async fn set_aside(
    core: &Core,
    original: &Received,
    envelope: &Envelope,
    target: &str,
) -> Result<()> {
    match publish_copy(core, original, envelope, target).await {
        Err(Error::Unroutable { .. }) => {
            tracing::warn!(queue = target, "a set-aside queue is missing; declaring it again");
            core.declare(&standard::set_aside_queues(&original.queue)).await?;
            publish_copy(core, original, envelope, target).await
        }
        answer => answer,
    }
}

/// Moves a copy of a message to the dead letters of its queue, with the reason.
pub(crate) async fn dead_letter(core: &Core, original: &Received, reason: &str) -> Result<()> {
    let target = standard::dead_letter_name(&original.queue);
    let envelope = set_aside_envelope(original, Cause::Rejected, reason, false);
    set_aside(core, original, &envelope, &target).await
}

/// Moves a copy of a message to the parked ones of its queue, with the reason.
pub(crate) async fn park(core: &Core, original: &Received, reason: &str) -> Result<()> {
    let target = standard::parked_name(&original.queue);
    let envelope = set_aside_envelope(original, Cause::Parked, reason, false);
    set_aside(core, original, &envelope, &target).await
}

/// The envelope of a message that is set aside: with the reason, cut so that the headers stay
/// within one frame, and where `readable` also with what tools of other stacks look for.
pub(super) fn set_aside_envelope(
    original: &Received,
    cause: Cause,
    error: &str,
    readable: bool,
) -> Envelope {
    let bare = original.envelope.clone().with_error("");
    let described = readable.then(|| {
        noting_origin(bare.clone(), original)
            .header(header::EXCEPTION_TYPE, cause.as_str())
            .header(header::EXCEPTION_MESSAGE, "")
    });
    // The message moves without the headers for others if there is no room for them.
    if let Some(described) =
        described.filter(|described| room(original, described) >= COURTESY_ROOM)
    {
        let text = cut(error, (room(original, &described) / 2).min(MAX_ERROR));
        return described.header(header::EXCEPTION_MESSAGE, text.as_str()).with_error(text);
    }
    let text = cut(error, room(original, &bare).min(MAX_ERROR));
    bare.with_error(text)
}

/// Keeps the exchange and routing key of the first publish, which a copy would otherwise lose,
/// unless an earlier copy noted them or there is no room for them.
pub(super) fn noting_origin(envelope: Envelope, original: &Received) -> Envelope {
    if envelope.headers().get(header::ORIGINAL_ROUTING_KEY).is_some() {
        return envelope;
    }
    let noted = envelope
        .clone()
        .header(header::ORIGINAL_EXCHANGE, original.exchange.as_str())
        .header(header::ORIGINAL_ROUTING_KEY, original.routing_key.as_str());
    if room(original, &noted) >= COURTESY_ROOM { noted } else { envelope }
}

/// The bytes that the headers of a copy may still grow by.
fn room(original: &Received, envelope: &Envelope) -> usize {
    let copy = original.properties.for_republish().carrying(envelope);
    HEADER_ROOM.saturating_sub(copy.encoded_len())
}
