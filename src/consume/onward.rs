//! Sending a message on: the next place has it before the one at hand is acknowledged.

use std::time::Duration;

use super::decide::Outcome;
use crate::{
    connection::Core,
    error::{Result, with_causes},
    transport::Outgoing,
};

/// How long a message waits whose next place cannot be reached.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Publishes a message that another one has caused, and says what becomes of that one.
///
/// A refusal of the message itself, such as a next place that does not exist, is tried again by the
/// consumer's policy and then dead-letters; an outage waits, and spends no attempt.
pub(crate) async fn send_on(core: &Core, message: Result<Outgoing>) -> Outcome {
    let sent = match message {
        Ok(message) => core.publish_on_behalf(message).await,
        Err(error) => Err(error),
    };
    match sent {
        Ok(()) => Outcome::Ack,
        Err(error) if error.concerns_the_message() => Outcome::Retry {
            reason: format!("it could not be sent on: {}", with_causes(&error)),
            after: None,
        },
        Err(error) => {
            let reason = with_causes(&error);
            tracing::warn!(reason, "a message could not be sent on; trying again");
            Outcome::Defer(AGAIN_AFTER)
        }
    }
}
