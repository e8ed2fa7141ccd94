//! Asking a database again until it answers.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::Backoff,
    error::{Result, with_causes},
};

/// The pauses between attempts to reach a database that is down.
pub(super) fn pauses() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}

/// Repeats a call until it succeeds; none if the consumer stops first.
///
/// A message whose database is down is neither handled nor acknowledged: it is held, so that an
/// outage spends no attempts and makes no loop.
pub(crate) async fn insist<'a, T>(
    action: &str,
    stop: &CancellationToken,
    call: impl Fn() -> BoxFuture<'a, Result<T>>,
) -> Option<T> {
    let mut backoff = pauses();
    let mut failing = false;
    loop {
        match call().await {
            Ok(answer) => return Some(answer),
            // Said once a call: a database that is down is down for every attempt.
            Err(error) if !failing => {
                let error = with_causes(&error);
                tracing::error!(action, error, "the database failed; trying until it answers");
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
