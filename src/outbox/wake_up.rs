//! Wake-ups over processes: hints that a record was committed elsewhere, so that a relay need not
//! wait for its next poll. A database that can carry them brings the two calls that these take.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    backoff::Backoff,
    error::{Result, with_causes},
};

/// Hears the wake-ups of other processes for as long as it lives.
///
/// Connects again, with growing delays, whenever its connection is lost; until then, and for
/// wake-ups that were missed meanwhile, the relays' polls find the records.
#[derive(Debug)]
#[must_use = "dropping the listener stops it"]
pub struct OutboxListener {
    _stop: DropGuard,
}

impl OutboxListener {
    /// Runs `listen` again and again; it returns when its connection is gone. `listening` of the
    /// state that it is given says that the connection was made.
    pub(super) fn start<F>(listen: impl Fn(Listening) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<()>> + Send,
    {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = async move {
            let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
            let listening = Listening::default();
            loop {
                let ended = listen(listening.clone()).await;
                if listening.take() {
                    backoff.reset();
                }
                let reason = ended.as_ref().err().map(|error| with_causes(error));
                tracing::warn!(reason, "the outbox does not hear other processes for now");
                tokio::time::sleep(backoff.next()).await;
            }
        };
        tokio::spawn(async move { stopped.run_until_cancelled(run).await });
        Self { _stop: stop.drop_guard() }
    }
}

/// Whether a listener's connection was made since this was last asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Listening(Arc<Mutex<bool>>);

impl Listening {
    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn take(&self) -> bool {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells other processes, at most once in an interval: the first time at once, and whatever comes
/// within the interval together at its end.
#[derive(Debug, Clone)]
pub(super) struct Announcer {
    interval: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    again: bool,
}

impl Announcer {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, state: Arc::default() }
    }

    /// Tells them in the background by `tell`; outside a tokio runtime it does nothing.
    pub(super) fn announce<F>(&self, tell: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = Result<()>> + Send,
    {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut state.running, true) {
            state.again = true;
            return;
        }
        let this = self.clone();
        runtime.spawn(async move {
            loop {
                if let Err(error) = tell().await {
                    tracing::debug!(reason = with_causes(&error), "could not wake others");
                }
                tokio::time::sleep(this.interval).await;
                if !this.goes_on() {
                    return;
                }
            }
        });
    }

    fn goes_on(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running = std::mem::take(&mut state.again);
        state.running
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_announcements_at_once_are_sent_as_two() {
        let sent = Arc::new(AtomicU32::new(0));
        let announcer = Announcer::new(Duration::from_millis(50));
        let announce = || {
            let sent = Arc::clone(&sent);
            announcer.announce(move || {
                sent.fetch_add(1, Ordering::SeqCst);
                std::future::ready(Ok(()))
            });
        };
        for _ in 0..1000 {
            announce();
        }
        tokio::task::yield_now().await;
        assert_eq!(sent.load(Ordering::SeqCst), 1, "the first one goes out at once");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(sent.load(Ordering::SeqCst), 2);
        announce();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(sent.load(Ordering::SeqCst), 3);
    }
}
