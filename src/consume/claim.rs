//! Claiming a message before it is handled, so that a duplicate has no effect.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    decide::Outcome,
    insist::{insist, pauses},
    process::Handling,
};
use crate::{
    error::Result,
    idempotency::{Claim, IdempotencyStore},
};

/// How often a release is tried. After that the claim ends with its lease.
const RELEASE_ATTEMPTS: u32 = 3;

/// How often rows whose retention is over are deleted, and how many at a time.
const PURGE_EVERY: Duration = Duration::from_mins(1);
const PURGE_AT_ONCE: u32 = 1000;

/// A store and the name under which a consumer claims in it.
#[derive(Clone)]
pub(super) struct Claims {
    pub(super) store: Arc<dyn IdempotencyStore>,
    pub(super) consumer: String,
}

impl Claims {
    /// Claims, handles while the claim is renewed, and confirms or releases.
    ///
    /// A store that is down is asked again, with growing pauses, until it answers or the consumer
    /// stops: the message is neither handled nor acknowledged meanwhile.
    pub(super) async fn handle(
        &self,
        message_id: &str,
        stop: &CancellationToken,
        handling: BoxFuture<'_, Handling>,
    ) -> Handling {
        let claiming = || self.store.try_claim(&self.consumer, message_id);
        let token = match insist("claim a message", stop, claiming).await {
            None => return Handling::Stopped,
            Some(Claim::AlreadyConfirmed) => return Handling::Duplicate,
            Some(Claim::InProgress) => return Handling::InProgress,
            Some(Claim::Claimed(token)) => token,
        };
        let handled = self.while_renewing(message_id, token, handling).await;
        if !matches!(handled, Handling::Done(Outcome::Ack)) {
            self.release(message_id, token).await;
            return handled;
        }
        let confirming = || self.store.confirm(&self.consumer, message_id, token);
        match insist("confirm a message", stop, confirming).await {
            None => Handling::Stopped,
            Some(owned) => {
                if !owned {
                    let consumer = self.consumer.as_str();
                    tracing::warn!(consumer, message_id, "the claim ran out before its handler");
                }
                handled
            }
        }
    }

    async fn while_renewing(
        &self,
        message_id: &str,
        token: Uuid,
        handling: BoxFuture<'_, Handling>,
    ) -> Handling {
        let every = (self.store.claim_lease() / 3).max(Duration::from_millis(10));
        let mut renewal = interval_at(tokio::time::Instant::now() + every, every);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let renewing = async {
            loop {
                renewal.tick().await;
                // A failure is tried again at the next tick; a lost claim shows when confirming.
                if let Err(error) = self.store.renew(&self.consumer, message_id, token).await {
                    tracing::warn!(message_id, %error, "cannot renew a claim");
                }
            }
        };
        tokio::select! {
            biased;
            handled = handling => handled,
            never = renewing => never,
        }
    }

    /// Gives the claim back, so that the next attempt can have it at once.
    async fn release(&self, message_id: &str, token: Uuid) {
        let mut backoff = pauses();
        for _ in 0..RELEASE_ATTEMPTS {
            match self.store.release(&self.consumer, message_id, token).await {
                Ok(_) => return,
                Err(error) => tracing::warn!(message_id, %error, "cannot release a claim"),
            }
            sleep(backoff.next()).await;
        }
        let lease = self.store.claim_lease();
        tracing::error!(message_id, ?lease, "a claim was not released; it ends with its lease");
    }
}

/// Deletes rows whose retention is over, now and then, until the consumer stops.
pub(crate) async fn purge_until<'a>(
    stop: CancellationToken,
    purge: impl Fn(u32) -> BoxFuture<'a, Result<u64>>,
) {
    loop {
        tokio::select! {
            // Jittered, so that many consumers of one table do not purge at once.
            () = sleep(PURGE_EVERY.mul_f64(0.5 + fastrand::f64())) => {}
            () = stop.cancelled() => return,
        }
        // A failure is left to the next round: nothing depends on the purge.
        while let Ok(purged) = purge(PURGE_AT_ONCE).await {
            if purged < u64::from(PURGE_AT_ONCE) || stop.is_cancelled() {
                break;
            }
        }
    }
}
