//! The only place that asks for the time.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

/// Where an operation reads the time of day.
///
/// `memory://` runs on tokio's clock, so that a test with paused time sees wall-clock time pass
/// together with its timers; everything else reads the system's clock.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    /// The operating system's clock.
    System,
    /// Tokio's clock, counted from one reading of the system's.
    Tokio { started: DateTime<Utc>, at: Instant },
}

impl Clock {
    pub(crate) fn tokio() -> Self {
        Self::Tokio { started: Utc::now(), at: Instant::now() }
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        match self {
            Self::System => Utc::now(),
            Self::Tokio { started, at } => *started + at.elapsed(),
        }
    }

    /// Milliseconds since the epoch, the unit of every time on the wire.
    pub(crate) fn now_ms(&self) -> i64 {
        self.now().timestamp_millis()
    }
}

/// The end of a time limit from now; one without end is far away instead of an overflow.
pub(crate) fn deadline(limit: Duration) -> Instant {
    const FAR: Duration = Duration::from_hours(24 * 365);
    Instant::now() + limit.min(FAR)
}

/// Whole milliseconds, saturating: the unit of TTLs and delays on the wire.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokios_clock_moves_with_paused_time() {
        let clock = Clock::tokio();
        let before = clock.now_ms();
        tokio::time::advance(Duration::from_hours(4)).await;
        assert_eq!(clock.now_ms() - before, 4 * 3_600_000);
    }
}
