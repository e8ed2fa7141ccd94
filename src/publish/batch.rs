//! The outcome of a batch.

use crate::error::{Error, Result};

/// What became of each message of a [`Publisher::send_all`](super::Publisher::send_all).
#[derive(Debug)]
#[must_use = "some of the messages may not have been published"]
pub struct BatchOutcome {
    results: Vec<Result<String>>,
}

impl BatchOutcome {
    pub(super) fn new(results: Vec<Result<String>>) -> Self {
        Self { results }
    }

    /// Returns the result of each message, in the order of the input: its id, or why it failed.
    pub fn results(&self) -> &[Result<String>] {
        &self.results
    }

    /// Returns how many messages were confirmed.
    #[must_use]
    pub fn confirmed(&self) -> usize {
        self.results.iter().filter(|result| result.is_ok()).count()
    }

    /// Returns the first failure with the position of its message.
    #[must_use]
    pub fn first_failure(&self) -> Option<(usize, &Error)> {
        let mut failures = self.results.iter().enumerate();
        failures.find_map(|(position, result)| Some((position, result.as_ref().err()?)))
    }

    /// Returns the ids of all messages, or the first failure.
    ///
    /// # Errors
    ///
    /// The first failure in the order of the input. The others may have been published.
    pub fn into_result(self) -> Result<Vec<String>> {
        self.results.into_iter().collect()
    }
}
