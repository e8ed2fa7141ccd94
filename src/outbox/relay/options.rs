//! What a relay can be told.

use std::time::Duration;

use super::RetryDelay;

/// The settings of a relay; the setters on `OutboxRelay` keep them within bounds.
#[derive(Debug, Clone)]
pub(super) struct RelayOptions {
    pub(super) batch_size: u32,
    pub(super) poll_interval: Duration,
    pub(super) lease: Duration,
    pub(super) concurrency: usize,
    pub(super) max_attempts: u32,
    pub(super) retry_delay: RetryDelay,
    pub(super) retention: Option<Duration>,
    pub(super) purge_interval: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            batch_size: 100,
            poll_interval: Duration::from_secs(1),
            lease: Duration::from_mins(1),
            concurrency: 256,
            max_attempts: 10,
            retry_delay: RetryDelay::default(),
            retention: Some(Duration::from_hours(24)),
            purge_interval: Duration::from_mins(1),
        }
    }
}
