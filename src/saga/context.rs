//! What a step can know about the run that it belongs to.

use std::sync::Arc;

use uuid::Uuid;

/// The run and the step that the current task works for.
///
/// # Examples
///
/// ```
/// use acemq::{Saga, StepContext, StepError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), acemq::Error> {
/// let saga = Saga::<Vec<String>>::named("pay")
///     .step("take-payment", |mut keys: Vec<String>| async move {
///         // Given to the payment provider, who so recognises a repetition.
///         keys.extend(StepContext::current().map(|step| step.idempotency_key()));
///         Ok::<_, StepError>(keys)
///     })
///     .build()?;
/// let outcome = saga.run(Vec::new()).await;
/// assert!(outcome.state()[0].ends_with("/take-payment"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepContext {
    run: Uuid,
    step: Arc<str>,
    attempt: u32,
    compensates: bool,
}

tokio::task_local! {
    static CURRENT: StepContext;
}

impl StepContext {
    pub(super) fn new(run: Uuid, step: Arc<str>, attempt: u32, compensates: bool) -> Self {
        Self { run, step, attempt, compensates }
    }

    /// Returns the context of the step that runs now; none outside a step, and in a task that a
    /// step has spawned.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn run(&self) -> Uuid {
        self.run
    }

    /// Returns the name of the step.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.step
    }

    /// Returns which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns whether the step is being undone.
    #[must_use]
    pub fn is_compensation(&self) -> bool {
        self.compensates
    }

    /// Returns a key that is the same for every repetition of this step in this run, and that no
    /// other step and no compensation has: `{run}/{step}`, with `/undo` after it for a
    /// compensation.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        let undo = if self.compensates { "/undo" } else { "" };
        format!("{}/{}{undo}", self.run, self.step)
    }

    pub(super) async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }
}
