//! What a consumer counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::telemetry::Settled;

/// Counts since a consumer was started.
///
/// Each delivery counts once, by its end: among `acked`, `retried`, `deferred`, `dead_lettered`,
/// `parked`, `duplicates`, `in_progress` and `returned` if it was settled, else as `settle_failed`.
/// Deliveries whose handler was abandoned at a close are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// Deliveries taken from the queue.
    pub received: u64,
    /// Handled and acknowledged.
    pub acked: u64,
    /// Published again as the next attempt.
    pub retried: u64,
    /// Published again without an attempt counted, as the handler asked.
    pub deferred: u64,
    /// Moved to the dead-letter queue.
    pub dead_lettered: u64,
    /// Moved to the parked queue.
    pub parked: u64,
    /// Recognised as handled before and acknowledged without running the handler.
    pub duplicates: u64,
    /// Put back because another consumer was handling the same message.
    pub in_progress: u64,
    /// Given back to the queue: the consumer stopped, or a copy did not land.
    pub returned: u64,
    /// Copies that did not land; the original went back to its queue.
    pub set_aside_failed: u64,
    /// Waits that had no rung in the broker and were spent in the consumer.
    pub rung_missing: u64,
    /// Settlements that came too late: the channel was gone and the broker delivers again.
    pub settle_failed: u64,
    /// Handlers that run now.
    pub in_flight: u64,
}

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// The live counters behind [`ConsumerStats`].
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            pub(super) fn snapshot(&self) -> ConsumerStats {
                ConsumerStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters!(
    received,
    acked,
    retried,
    deferred,
    dead_lettered,
    parked,
    duplicates,
    in_progress,
    returned,
    set_aside_failed,
    rung_missing,
    settle_failed,
    in_flight,
);

impl Counters {
    /// Counts the end of a delivery.
    pub(super) fn settled(&self, settled: Settled) {
        let counter = match settled {
            Settled::Acked => &self.acked,
            Settled::Duplicate => &self.duplicates,
            Settled::Retried => &self.retried,
            Settled::Deferred => &self.deferred,
            Settled::DeadLettered => &self.dead_lettered,
            Settled::Parked => &self.parked,
            Settled::InProgress => &self.in_progress,
            Settled::Returned => &self.returned,
            Settled::TooLate => &self.settle_failed,
        };
        counter.add();
    }
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one until the guard is dropped.
    pub(super) fn enter(&self) -> Entered<'_> {
        self.add();
        Entered(self)
    }
}

/// One that is counted as long as this lives.
pub(super) struct Entered<'a>(&'a Counter);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
