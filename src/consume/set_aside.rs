//! Copies of a message for its next place: another attempt, the dead letters, the parked ones.

use crate::{
    connection::Core,
    error::{Error, Result, cut},
    message::{Envelope, Properties, Received},
    topology::standard,
    transport::Outgoing,
};

/// The longest error text that goes into a header.
const MAX_ERROR: usize = 8 * 1024;

/// The room that headers have at RabbitMQ's default frame size. A connection with a smaller one
/// refuses a copy by itself.
const HEADER_ROOM: usize = 128 * 1024 - 64;

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
    core.publish_on_behalf(message).await
}

/// Publishes a copy to a set-aside queue, which is declared again if it is missing.
pub(super) async fn set_aside(
    core: &Core,
    original: &Received,
    error: &str,
    target: &str,
) -> Result<()> {
    let envelope = with_error(original, error);
    match publish_copy(core, original, &envelope, target).await {
        Err(Error::Unroutable { .. }) => {
            tracing::warn!(queue = target, "a set-aside queue is missing; declaring it again");
            core.declare(&standard::set_aside_queues(&original.queue)).await?;
            publish_copy(core, original, &envelope, target).await
        }
        answer => answer,
    }
}

/// Adds the reason, cut so that the headers stay within one frame.
fn with_error(original: &Received, error: &str) -> Envelope {
    let bare = original.envelope.clone().with_error("");
    let used = original.properties.encoded_len().max(bare.to_headers().encoded_len());
    let room = HEADER_ROOM.saturating_sub(used).min(MAX_ERROR);
    bare.with_error(cut(error, room))
}
