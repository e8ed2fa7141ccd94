//! The timer that makes TTLs take effect while nobody calls the broker.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use super::broker::Broker;

/// The longest nap: tokio's timer wheel ends after some two years, a TTL may be ten.
const LONGEST_NAP: Duration = Duration::from_hours(24 * 30);

/// Starts a timer on the current runtime. Each link has one, so that time passes on whatever
/// runtime is still running; several on one broker are one too many and harmless.
pub(super) fn start(broker: &Arc<Broker>) -> AbortHandle {
    let deadline = broker.deadline();
    tokio::spawn(run(Arc::downgrade(broker), deadline)).abort_handle()
}

/// Ends with the broker, or when it is aborted.
async fn run(broker: Weak<Broker>, mut deadline: watch::Receiver<Option<Instant>>) {
    loop {
        let next = *deadline.borrow_and_update();
        tokio::select! {
            changed = deadline.changed() => if changed.is_err() { return },
            () = nap_until(next) => {
                let Some(broker) = broker.upgrade() else { return };
                // The time that passed takes effect before any operation.
                broker.with(|_| ());
            }
        }
    }
}

async fn nap_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.min(Instant::now() + LONGEST_NAP)).await,
        None => std::future::pending().await,
    }
}
