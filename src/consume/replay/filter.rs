//! Which messages a replay moves.

use std::time::Duration;

use super::ReplayCandidate;
use crate::message::HeaderValue;

/// Picks messages of a dead-letter or parked queue. All its conditions must hold; without any it
/// picks every message.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use acemq::consume::ReplayFilter;
///
/// let yesterdays_timeouts = ReplayFilter::new()
///     .message_type("order.placed")
///     .error_contains("timed out")
///     .max_age(Duration::from_secs(24 * 3600));
/// # let _ = yesterdays_timeouts;
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a filter does nothing until it is passed to a replay"]
pub struct ReplayFilter {
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone)]
enum Condition {
    Type(String),
    Id(String),
    MinAge(Duration),
    MaxAge(Duration),
    ErrorContains(String),
    Header(String, HeaderValue),
}

impl ReplayFilter {
    /// Creates a filter that picks every message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Picks messages of this type.
    pub fn message_type(self, message_type: impl Into<String>) -> Self {
        self.and(Condition::Type(message_type.into()))
    }

    /// Picks the message with this id, and copies of it.
    pub fn message_id(self, id: impl Into<String>) -> Self {
        self.and(Condition::Id(id.into()))
    }

    /// Picks messages that were first published at least this long ago.
    pub fn min_age(self, age: Duration) -> Self {
        self.and(Condition::MinAge(age))
    }

    /// Picks messages that were first published at most this long ago, and those that do not say
    /// when.
    pub fn max_age(self, age: Duration) -> Self {
        self.and(Condition::MaxAge(age))
    }

    /// Picks messages whose error contains this text, upper and lower case told apart.
    ///
    /// A message that the broker dead-lettered has no error.
    pub fn error_contains(self, text: impl Into<String>) -> Self {
        self.and(Condition::ErrorContains(text.into()))
    }

    /// Picks messages with this value in a header of the application's. Integers are compared by
    /// value, whatever their width.
    pub fn header(self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.and(Condition::Header(name.into(), value.into()))
    }

    fn and(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    pub(super) fn picks(&self, candidate: &ReplayCandidate) -> bool {
        self.conditions.iter().all(|condition| condition.holds(candidate))
    }
}

impl Condition {
    fn holds(&self, candidate: &ReplayCandidate) -> bool {
        match self {
            Self::Type(wanted) => candidate.message_type() == wanted,
            Self::Id(wanted) => candidate.id() == wanted,
            Self::MinAge(age) => candidate.age() >= *age,
            Self::MaxAge(age) => candidate.age() <= *age,
            Self::ErrorContains(text) => {
                candidate.error().is_some_and(|error| error.contains(text))
            }
            Self::Header(name, wanted) => {
                candidate.headers().get(name).is_some_and(|found| is_same(found, wanted))
            }
        }
    }
}

fn is_same(found: &HeaderValue, wanted: &HeaderValue) -> bool {
    match (found.as_i64(), wanted.as_i64()) {
        (Some(found), Some(wanted)) => found == wanted,
        _ => found == wanted,
    }
}
