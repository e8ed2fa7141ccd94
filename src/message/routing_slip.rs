//! The slip of a declared pipeline: step names in three headers.

use uuid::Uuid;

use super::{HeaderValue, Headers, header};
use crate::error::{Error, Result};

/// Where a message is in the steps of a declared pipeline.
///
/// On the wire this is the route trio `x-acemq-route`, `x-acemq-route-position` and
/// `x-acemq-route-id` (wire contract, section 11.2). The names only mean something together with
/// the pipeline; a route that carries its addresses is an [`Itinerary`](super::Itinerary).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingSlip {
    steps: Vec<String>,
    position: usize,
    run_id: String,
}

impl RoutingSlip {
    /// Creates a slip at its first step, with a fresh run id; none where no step has a name.
    #[must_use]
    pub fn new<S: Into<String>>(steps: impl IntoIterator<Item = S>) -> Option<Self> {
        let steps: Vec<String> = steps.into_iter().map(Into::into).collect();
        Self::at(&steps.join(","), 0, Uuid::new_v4().to_string())
    }

    /// Splits on commas, trims, and drops blanks, as every reader of the family does.
    fn at(route: &str, position: usize, run_id: String) -> Option<Self> {
        let steps: Vec<String> =
            route.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
        let position = position.min(steps.len());
        (!steps.is_empty()).then_some(Self { steps, position, run_id })
    }

    /// Returns the step names.
    #[must_use]
    pub fn steps(&self) -> &[String] {
        &self.steps
    }

    /// Returns the index of the current step; the number of steps when finished.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the identity of the run, the same from the first step to the last.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the current step; none when finished.
    #[must_use]
    pub fn current(&self) -> Option<&str> {
        self.steps.get(self.position).map(String::as_str)
    }

    /// Returns the step after the current one.
    #[must_use]
    pub fn next(&self) -> Option<&str> {
        self.steps.get(self.position + 1).map(String::as_str)
    }

    /// Returns whether every step is done.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.position >= self.steps.len()
    }

    /// Moves to the next step. A finished slip stays as it is.
    #[must_use]
    pub fn advance(&self) -> Self {
        Self { position: (self.position + 1).min(self.steps.len()), ..self.clone() }
    }

    /// Writes the slip as the route trio.
    pub(crate) fn write(&self, headers: &mut Headers) {
        headers.insert(header::ROUTE, self.steps.join(","));
        headers.insert(header::ROUTE_POSITION, i32::try_from(self.position).unwrap_or(i32::MAX));
        headers.insert(header::ROUTE_ID, self.run_id.as_str());
    }

    /// Reads the route trio leniently; none where the route names no step.
    pub(crate) fn read(headers: &Headers) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(HeaderValue::lenient_text);
        let position = headers
            .get(header::ROUTE_POSITION)
            .and_then(HeaderValue::lenient_i64)
            .map_or(0, |position| usize::try_from(position.max(0)).unwrap_or(usize::MAX));
        let run_id = text(header::ROUTE_ID).unwrap_or_else(|| Uuid::new_v4().to_string());
        Self::at(&text(header::ROUTE)?, position, run_id)
    }
}

/// Refuses a step name that another member of the family could not read.
///
/// Letters are ASCII: Java takes any letter, the others do not. Go also refuses `_`, which is
/// therefore best left out of a pipeline shared with it.
pub(crate) fn check_step_name(name: &str) -> Result<()> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.is_empty() {
        return Err(Error::invalid("step", name, "is empty"));
    }
    if !name.chars().all(known) {
        let reason = "may hold ASCII letters, digits, `-`, `.` and `_` only";
        return Err(Error::invalid("step", name, reason));
    }
    Ok(())
}
