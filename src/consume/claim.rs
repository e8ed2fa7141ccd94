//! Claiming a message before it is handled, so that a duplicate has no effect.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::decide::Outcome;
use crate::{
    backoff::Backoff,
    error::{Result, with_causes},
    idempotency::{Claim, IdempotencyStore},
};

/// The pauses between attempts to reach a store that is down.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often a release is tried. After that the claim ends with its lease.
const RELEASE_ATTEMPTS: u32 = 3;

/// How often rows whose retention is over are deleted, and how many at a time.
const PURGE_EVERY: Duration = Duration::from_secs(60);
const PURGE_AT_ONCE: u32 = 1000;

/// A store and the name under which a consumer claims in it.
#[derive(Clone)]
pub(super) struct Claims {
    pub(super) store: Arc<dyn IdempotencyStore>,
    pub(super) consumer: String,
}

/// How handling under a claim ended.
pub(super) enum Claimed {
    /// The handler ran, and its outcome is recorded: the claim is confirmed or released.
    Handled(Outcome),
    /// The message was handled before.
    Duplicate,
    /// Another consumer is handling it.
    InProgress,
    /// The consumer stopped before the store answered; nothing is known.
    Stopped,
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
        handling: impl Future<Output = Outcome>,
    ) -> Claimed {
        let claiming = || self.store.try_claim(&self.consumer, message_id);
        let token = match self.insist("claim", stop, claiming).await {
            None => return Claimed::Stopped,
            Some(Claim::AlreadyConfirmed) => return Claimed::Duplicate,
            Some(Claim::InProgress) => return Claimed::InProgress,
            Some(Claim::Claimed(token)) => token,
        };
        let outcome = self.while_renewing(message_id, token, handling).await;
        if outcome != Outcome::Ack {
            self.release(message_id, token).await;
            return Claimed::Handled(outcome);
        }
        let confirming = || self.store.confirm(&self.consumer, message_id, token);
        match self.insist("confirm", stop, confirming).await {
            None => Claimed::Stopped,
            Some(owned) => {
                if !owned {
                    let consumer = self.consumer.as_str();
                    tracing::warn!(consumer, message_id, "the claim ran out before its handler");
                }
                Claimed::Handled(outcome)
            }
        }
    }

    /// Repeats a call until the store answers; none if the consumer stops first.
    async fn insist<'a, T>(
        &self,
        action: &str,
        stop: &CancellationToken,
        call: impl Fn() -> BoxFuture<'a, Result<T>>,
    ) -> Option<T> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut failing = false;
        loop {
            match call().await {
                Ok(answer) => return Some(answer),
                // Said once: a store that is down is down for every message.
                Err(error) if !failing => {
                    let (consumer, error) = (self.consumer.as_str(), with_causes(&error));
                    tracing::error!(consumer, action, error, "the idempotency store failed");
                    failing = true;
                }
                Err(_) => {}
            }
            tokio::select! {
                () = sleep(backoff.next()) => {}
                () = stop.cancelled() => return None,
            }
        }
    }

    async fn while_renewing(
        &self,
        message_id: &str,
        token: Uuid,
        handling: impl Future<Output = Outcome>,
    ) -> Outcome {
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
            outcome = handling => outcome,
            never = renewing => never,
        }
    }

    /// Gives the claim back, so that the next attempt can have it at once.
    async fn release(&self, message_id: &str, token: Uuid) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
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

    /// Deletes rows whose retention is over, now and then, until the consumer stops.
    pub(super) async fn purge_until(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                // Jittered, so that many consumers of one table do not purge at once.
                () = sleep(PURGE_EVERY.mul_f64(0.5 + fastrand::f64())) => {}
                () = stop.cancelled() => return,
            }
            while let Ok(purged) = self.store.purge(PURGE_AT_ONCE).await {
                if purged < u64::from(PURGE_AT_ONCE) || stop.is_cancelled() {
                    break;
                }
            }
        }
    }
}
