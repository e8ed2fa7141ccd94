//! How a journal keeps a failure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{clock, error::cut, saga::error::SagaFailure};

/// Longer texts of errors are cut, in bytes.
const LONGEST_TEXT: usize = 4000;

/// What a journal keeps of a failure, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredFailure {
    #[serde(flatten)]
    what: What,
    /// Whether the step that failed is compensated with the others.
    pub(super) undo: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum What {
    Step { text: String, unknown: bool },
    Panic { text: String },
    Timeout { after_ms: u64 },
    Cancelled,
}

impl StoredFailure {
    pub(super) fn json(failure: &SagaFailure, undo: bool) -> Option<String> {
        let what = match failure {
            SagaFailure::Step { text, unknown, .. } => {
                What::Step { text: cut(text, LONGEST_TEXT), unknown: *unknown }
            }
            SagaFailure::Panicked { text } => What::Panic { text: cut(text, LONGEST_TEXT) },
            SagaFailure::TimedOut { after } => What::Timeout { after_ms: clock::millis(*after) },
            SagaFailure::Cancelled => What::Cancelled,
        };
        serde_json::to_string(&Self { what, undo }).ok()
    }

    /// What cannot be read counts as unknown, so that it is compensated.
    pub(super) fn read(detail: Option<&str>) -> Self {
        detail.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_else(|| {
            let text = "its failure cannot be read".to_owned();
            Self { what: What::Step { text, unknown: true }, undo: true }
        })
    }

    pub(super) fn is_unknown(&self) -> bool {
        match self.what {
            What::Step { unknown, .. } => unknown,
            What::Panic { .. } | What::Timeout { .. } => true,
            What::Cancelled => false,
        }
    }

    pub(super) fn into_failure(self) -> SagaFailure {
        match self.what {
            What::Step { text, unknown } => SagaFailure::Step { text, source: None, unknown },
            What::Panic { text } => SagaFailure::Panicked { text },
            What::Timeout { after_ms } => {
                SagaFailure::TimedOut { after: Duration::from_millis(after_ms) }
            }
            What::Cancelled => SagaFailure::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_comes_back_as_it_was() {
        let text = || "late".to_owned();
        for failure in [
            SagaFailure::Step { text: text(), source: None, unknown: false },
            SagaFailure::Step { text: text(), source: None, unknown: true },
            SagaFailure::Panicked { text: text() },
            SagaFailure::TimedOut { after: Duration::from_millis(1500) },
            SagaFailure::Cancelled,
        ] {
            for undo in [true, false] {
                let json = StoredFailure::json(&failure, undo).expect("it is written");
                let stored = StoredFailure::read(Some(&json));
                assert_eq!((stored.undo, stored.is_unknown()), (undo, failure.is_unknown()));
                assert_eq!(format!("{:?}", stored.into_failure()), format!("{failure:?}"));
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_compensated() {
        for damaged in [None, Some("{}"), Some("{\"kind\":\"quiet\",\"undo\":false}")] {
            let stored = StoredFailure::read(damaged);
            assert!(stored.undo && stored.is_unknown());
        }
    }
}
