//! Running: forward through the steps, and backward after a failure.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    context::StepContext,
    definition::Definition,
    error::{SagaFailure, StepError},
    outcome::{SagaOutcome, Unresolved},
    step::{Form, Step, Trying, UndoForm, Update},
};

/// Runs a saga in a task of its own, which a caller that goes away tells to stop.
pub(super) async fn run<T>(definition: Arc<Definition<T>>, state: T) -> SagaOutcome<T>
where
    T: Clone + Send + Sync + 'static,
{
    let cancelled = CancellationToken::new();
    let gone = cancelled.clone().drop_guard();
    let (tell, told) = oneshot::channel();
    let unheard = Walk::new(Arc::clone(&definition), state.clone(), cancelled.clone());
    let walk = Walk::new(definition, state, cancelled);
    tokio::spawn(async move {
        let outcome = walk.walk().await;
        if let Err(outcome) = tell.send(outcome) {
            tell_log(&outcome);
        }
    });
    let outcome = told.await;
    gone.disarm();
    // The task never panics; only a runtime that shuts down drops it.
    outcome.unwrap_or_else(|_| unheard.ended(Some((None, SagaFailure::Cancelled))))
}

/// Says what became of a saga that nobody waits for any more.
fn tell_log<T>(outcome: &SagaOutcome<T>) {
    let (undone, passed_over) = (outcome.undone(), outcome.passed_over());
    if outcome.has_unresolved() {
        let unresolved = outcome.unresolved();
        tracing::error!(?undone, ?unresolved, "an abandoned saga could not be undone");
    } else if outcome.is_complete() {
        tracing::info!("a saga completed whose caller had gone");
    } else {
        tracing::warn!(?undone, ?passed_over, "an abandoned saga was undone");
    }
}

/// One run.
struct Walk<T> {
    definition: Arc<Definition<T>>,
    run: Uuid,
    cancelled: CancellationToken,
    state: T,
    /// Steps that have, or may have, taken effect, in the order in which they ended.
    effective: Vec<usize>,
    completed: Vec<String>,
    undone: Vec<String>,
    passed_over: Vec<String>,
    unresolved: Vec<Unresolved>,
}

type Failure = (Option<String>, SagaFailure);

impl<T: Clone + Send + Sync + 'static> Walk<T> {
    fn new(definition: Arc<Definition<T>>, state: T, cancelled: CancellationToken) -> Self {
        Self {
            definition,
            run: Uuid::now_v7(),
            cancelled,
            state,
            effective: Vec::new(),
            completed: Vec::new(),
            undone: Vec::new(),
            passed_over: Vec::new(),
            unresolved: Vec::new(),
        }
    }

    async fn walk(mut self) -> SagaOutcome<T> {
        let failure = self.forward().await;
        if failure.is_some() {
            self.backward().await;
        }
        self.ended(failure)
    }

    fn ended(self, failure: Option<Failure>) -> SagaOutcome<T> {
        let Self { state, completed, undone, passed_over, unresolved, .. } = self;
        SagaOutcome { state, completed, failure, undone, passed_over, unresolved }
    }

    /// Runs stage after stage; returns the first failure.
    async fn forward(&mut self) -> Option<Failure> {
        let definition = Arc::clone(&self.definition);
        for stage in &definition.stages {
            if self.cancelled.is_cancelled() {
                let next = definition.steps.get(stage.start).map(|step| step.name.to_string());
                return Some((next, SagaFailure::Cancelled));
            }
            let mut running: FuturesUnordered<_> = stage
                .clone()
                .map(|index| {
                    let (step, state, run) =
                        (&definition.steps[index], self.state.clone(), self.run);
                    async move { (index, attempt_step(step, run, &state).await) }
                })
                .collect();
            let mut failure = None;
            // To the end of all, also after a failure: a step that was cut off would be unknown.
            while let Some((index, ended)) = running.next().await {
                let failed = self.note(&definition.steps[index], index, ended);
                failure = failure.or(failed);
            }
            if failure.is_some() {
                return failure;
            }
        }
        None
    }

    /// Notes the end of a step; returns its failure.
    fn note(
        &mut self,
        step: &Step<T>,
        index: usize,
        ended: Result<Update<T>, SagaFailure>,
    ) -> Option<Failure> {
        match ended {
            Ok(update) => {
                update(&mut self.state);
                self.effective.push(index);
                self.completed.push(step.name.to_string());
                None
            }
            Err(failure) => {
                if failure.is_unknown() || step.undo_on_failure {
                    self.effective.push(index);
                }
                Some((Some(step.name.to_string()), failure))
            }
        }
    }

    /// Undoes what has taken effect, the last first. A compensation that fails stops no other.
    async fn backward(&mut self) {
        let definition = Arc::clone(&self.definition);
        while let Some(index) = self.effective.pop() {
            let step = &definition.steps[index];
            match undo(step, self.run, &self.state).await {
                None => self.passed_over.push(step.name.to_string()),
                Some(Ok(())) => self.undone.push(step.name.to_string()),
                Some(Err(error)) => {
                    let step = step.name.to_string();
                    let saga = self.definition.name.as_str();
                    tracing::error!(saga, step, %error, "a step could not be undone");
                    self.unresolved.push(Unresolved { step, error });
                }
            }
        }
    }
}

/// Tries a step by its policy.
pub(super) async fn attempt_step<T: Clone + Send + 'static>(
    step: &Step<T>,
    run: Uuid,
    state: &T,
) -> Result<Update<T>, SagaFailure> {
    let context = |attempt| StepContext::new(run, Arc::clone(&step.name), attempt, false);
    match &step.form {
        Form::Plain(work) => attempts(&step.trying, context, || work(state.clone())).await,
        // Only a durable saga has such steps, and it runs them otherwise.
        #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
        Form::Transactional(_) | Form::Wait(_) => Err(SagaFailure::Cancelled),
    }
}

/// Tries the compensation of a step by its policy; none if it has none.
pub(super) async fn undo<T: Clone + Send + 'static>(
    step: &Step<T>,
    run: Uuid,
    state: &T,
) -> Option<Result<(), SagaFailure>> {
    let context = |attempt| StepContext::new(run, Arc::clone(&step.name), attempt, true);
    match step.undo.as_ref()? {
        UndoForm::Plain(undo) => {
            Some(attempts(&step.undoing, context, || undo(state.clone())).await)
        }
        #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
        UndoForm::Transactional(_) => Some(Err(SagaFailure::Cancelled)),
    }
}

/// Tries something until it works or its policy is at its end; never panics.
///
/// If any attempt may have had an effect, the failure says so, whatever the last one said.
pub(super) async fn attempts<A, Fut>(
    trying: &Trying,
    context: impl Fn(u32) -> StepContext,
    work: impl Fn() -> Fut,
) -> Result<A, SagaFailure>
where
    Fut: Future<Output = Result<A, StepError>>,
{
    let mut attempt = 1;
    let mut in_doubt = false;
    loop {
        let failure = match once(trying, context(attempt), &work).await {
            Ok(answer) => return Ok(answer),
            Err((failure, is_final)) => {
                in_doubt |= failure.is_unknown();
                let delay = trying.policy.delay_after(attempt).filter(|_| !is_final);
                let Some(delay) = delay else { return Err(doubting(failure, in_doubt)) };
                delay
            }
        };
        tokio::time::sleep(trying.policy.jittered(failure, fastrand::f64())).await;
        attempt += 1;
    }
}

/// Says that a failure leaves it open whether there was an effect, if an earlier attempt did.
pub(super) fn doubting(failure: SagaFailure, in_doubt: bool) -> SagaFailure {
    match failure {
        SagaFailure::Step { text, source, .. } => {
            SagaFailure::Step { text, source, unknown: in_doubt }
        }
        failure => failure,
    }
}

/// One attempt; the failure, and whether it is of no use to try again.
pub(super) async fn once<A, Fut>(
    trying: &Trying,
    context: StepContext,
    work: impl FnOnce() -> Fut,
) -> Result<A, (SagaFailure, bool)>
where
    Fut: Future<Output = Result<A, StepError>>,
{
    // The call too: a function may panic before it returns its future.
    let guarded = AssertUnwindSafe(async { work().await }).catch_unwind();
    let guarded = context.scope(guarded);
    let ended = match trying.timeout {
        None => guarded.await,
        Some(limit) => match timeout(limit, guarded).await {
            Ok(ended) => ended,
            Err(_) => return Err((SagaFailure::TimedOut { after: limit }, false)),
        },
    };
    match ended {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => {
            let is_final = error.is_final();
            Err((error.into_failure(), is_final))
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "no text".to_owned());
            // A bug does not go away by another attempt.
            Err((SagaFailure::Panicked { text }, true))
        }
    }
}
