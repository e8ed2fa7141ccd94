//! What becomes of a message that comes out of the ladder.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};

use super::{
    ladder::Rungs,
    parcel::{Label, to_rung, unwrapped},
    stats::Counters,
};
use crate::{
    connection::Core,
    consume::{Handling, Outcome, Process},
    error::{Error, Result, with_causes},
    message::Received,
    transport::Outgoing,
};

/// How long a message waits whose next place could not be reached.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Sends messages on their way down the ladder, and to their targets when they are due.
pub(super) struct Control {
    pub(super) core: Arc<Core>,
    pub(super) rungs: Rungs,
    pub(super) counters: Arc<Counters>,
}

impl Process for Control {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        async move { Handling::Done(self.send_on(&received).await) }.boxed()
    }
}

impl Control {
    async fn send_on(&self, received: &Received) -> Outcome {
        let label = match Label::read(received.envelope.headers()) {
            Ok(label) => label,
            Err(reason) => {
                self.counters.failed.add();
                return Outcome::Reject(format!("not a scheduled message: {reason}"));
            }
        };
        let remaining = label.due_ms.saturating_sub(self.core.clock().now_ms());
        match self.rungs.next(remaining) {
            Some(hop) => {
                let outcome = settled(self.hop(to_rung(received, hop)).await);
                if matches!(outcome, Outcome::Reject(_)) {
                    self.counters.failed.add();
                }
                outcome
            }
            None => self.deliver(unwrapped(received, label)).await,
        }
    }

    /// Publishes into a rung, which is declared again if somebody has deleted it.
    pub(super) async fn hop(&self, message: Outgoing) -> Result<()> {
        let copied = match self.core.publish_again(message.clone()).await {
            Err(Error::Unroutable { .. } | Error::NotFound { .. }) => {
                tracing::warn!(rung = message.routing_key, "a rung is missing; declaring it again");
                self.core.declare(&self.rungs.topology()).await?;
                self.core.publish_again(message).await
            }
            copied => copied,
        };
        copied.inspect(|()| self.counters.hops.add())
    }

    async fn deliver(&self, message: Outgoing) -> Outcome {
        match self.core.publish_again(message).await {
            Ok(()) => {
                self.counters.delivered.add();
                Outcome::Ack
            }
            // Refused for now, as a full queue does.
            Err(Error::Nacked { .. }) => Outcome::Defer(AGAIN_AFTER),
            Err(error) if error.concerns_the_message() => {
                self.counters.failed.add();
                Outcome::Reject(format!("it cannot be delivered: {}", with_causes(&error)))
            }
            failed => settled(failed),
        }
    }
}

/// The message has its next place, or it waits until the broker can give it one. One that can have
/// none is given up.
fn settled(copied: Result<()>) -> Outcome {
    match copied {
        Ok(()) => Outcome::Ack,
        Err(error) if error.concerns_the_message() && !matches!(error, Error::Nacked { .. }) => {
            Outcome::Reject(format!("it cannot be sent on: {}", with_causes(&error)))
        }
        Err(error) => {
            let reason = with_causes(&error);
            tracing::warn!(reason, "a scheduled message could not be sent on; trying again");
            Outcome::Defer(AGAIN_AFTER)
        }
    }
}
