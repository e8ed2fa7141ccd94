//! What a relay has done.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::clock::millis;

/// The tally of one or more passes over an outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayReport {
    pub(super) claimed: u64,
    pub(super) published: u64,
    pub(super) failed: u64,
    pub(super) retired: u64,
    pub(super) released: u64,
    pub(super) lost: u64,
    pub(super) last_error: Option<String>,
}

impl RelayReport {
    /// Returns how many records were leased.
    #[must_use]
    pub fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Returns how many were confirmed by the broker and marked as published.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Returns how many spent an attempt, those that retired included.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns how many spent their last attempt.
    #[must_use]
    pub fn retired(&self) -> u64 {
        self.retired
    }

    /// Returns how many were given back with no attempt spent: because of an outage, or because an
    /// earlier record of their ordering key failed.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Returns how many could not be marked: their lease had gone to another relay, or the
    /// database did not answer before it ended. Some of them may be published twice.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the last error of a publish or of the database.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Whether the broker answered for any record.
    pub(super) fn broker_answered(&self) -> bool {
        self.published + self.failed + self.lost > 0
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.claimed += other.claimed;
        self.published += other.published;
        self.failed += other.failed;
        self.retired += other.retired;
        self.released += other.released;
        self.lost += other.lost;
        self.last_error = other.last_error.or(self.last_error.take());
    }
}

/// The counters of a running relay.
#[derive(Debug, Default)]
pub(super) struct Stats {
    published: AtomicU64,
    failed: AtomicU64,
    retired: AtomicU64,
    lost: AtomicU64,
    lag_ms: AtomicU64,
    last_error: Mutex<Option<String>>,
    /// Why nothing goes out at the moment, by what is lost.
    troubles: Mutex<BTreeMap<&'static str, String>>,
}

impl Stats {
    pub(super) fn add(&self, report: &RelayReport) {
        self.published.fetch_add(report.published, Ordering::Relaxed);
        self.failed.fetch_add(report.failed, Ordering::Relaxed);
        self.retired.fetch_add(report.retired, Ordering::Relaxed);
        self.lost.fetch_add(report.lost, Ordering::Relaxed);
        if let Some(error) = &report.last_error {
            self.set_last_error(error.clone());
        }
    }

    pub(super) fn set_last_error(&self, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(super) fn set_lag(&self, lag: Duration) {
        self.lag_ms.store(millis(lag), Ordering::Relaxed);
    }

    /// Notes that something the relay needs is lost, or back.
    pub(super) fn set_trouble(&self, what: &'static str, reason: Option<&str>) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Some(reason) => drop(troubles.insert(what, reason.to_owned())),
            None => drop(troubles.remove(what)),
        }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.iter().next().map(|(what, reason)| format!("has lost {what}: {reason}"))
    }

    pub(super) fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn lag(&self) -> Duration {
        Duration::from_millis(self.lag_ms.load(Ordering::Relaxed))
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
