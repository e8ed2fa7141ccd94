//! Driving a run: forward through its steps, and backward after a failure, with a journal.

use std::{any::Any, ops::Range, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    journal::{EntryKind, RunNext, RunStatus, SagaJournal, WaitUntil},
    owner::{LetGo, Owner},
    progress::Tries,
    wait::{TransactionalWork, Wait},
};
use crate::{
    consume::RetryPolicy,
    error::{BoxError, with_causes},
    saga::{
        context::StepContext,
        definition::Definition,
        error::{SagaFailure, StepError},
        run::{attempt_step, doubting, once},
        step::{Form, InDoubt, Step, Trying, UndoForm, Update},
    },
};

/// A retry this far away, or farther, is not waited for by the process.
const LONGEST_HELD_WAIT: Duration = Duration::from_secs(5);

/// How many processes may die over one step before it counts as failed: it may be what kills them.
const MOST_DOUBTS: u32 = 5;

/// For how long a run is left alone that this definition cannot go on with.
const ALIEN_DELAY: Duration = Duration::from_secs(60);

/// What the drive needs of a state.
pub(super) trait State:
    Serialize + DeserializeOwned + Clone + Send + Sync + 'static
{
}
impl<T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> State for T {}

/// One run in the hands of one owner.
pub(super) struct Drive<T, J> {
    pub(super) definition: Arc<Definition<T>>,
    pub(super) owner: Owner<J>,
    /// Until when the run had waited, in milliseconds since the epoch, and whether that is over.
    pub(super) waited: Option<(i64, bool)>,
}

impl<T: State, J: SagaJournal> Drive<T, J> {
    /// Drives the run to its end, or for as far as it goes now.
    pub(super) async fn drive(mut self) -> Result<RunStatus, LetGo> {
        let walked = self.walk().await;
        match &walked {
            Err(LetGo::Lost(reason)) => {
                let run = self.owner.lease.run;
                tracing::warn!(saga = self.definition.name, %run, reason, "let go of a run");
                // If the lease is still this one's, another may take it at once.
                self.owner.give_up(Duration::from_millis(200), None).await;
            }
            Ok(RunStatus::Unresolved) => {
                let (saga, run) = (&self.definition.name, self.owner.lease.run);
                let unresolved = &self.owner.progress.unresolved;
                tracing::error!(saga, %run, ?unresolved, "a saga could not be undone");
            }
            _ => {}
        }
        walked
    }

    async fn walk(&mut self) -> Result<RunStatus, LetGo> {
        if let Some(problem) = self.problem() {
            let run = self.owner.lease.run;
            tracing::error!(saga = self.definition.name, %run, problem, "left a run alone");
            self.owner.give_up(ALIEN_DELAY, Some(problem)).await;
            return Err(LetGo::GivenBack);
        }
        let definition = Arc::clone(&self.definition);
        for stage in &definition.stages {
            if self.owner.progress.failure.is_some() {
                break;
            }
            if stage.clone().all(|index| self.is_done(index)) {
                continue;
            }
            self.stop_if_told().await?;
            if stage.len() == 1 {
                self.single(&definition.steps[stage.start]).await?;
            } else {
                self.group(stage.clone()).await?;
            }
        }
        if self.owner.progress.failure.is_none() {
            return self.end(RunStatus::Complete).await;
        }
        self.backward().await?;
        let all_undone = self.owner.progress.unresolved.is_empty();
        self.end(if all_undone { RunStatus::Compensated } else { RunStatus::Unresolved }).await
    }

    async fn end(&mut self, status: RunStatus) -> Result<RunStatus, LetGo> {
        self.owner.write(RunNext::End(status)).await?;
        Ok(status)
    }

    fn is_done(&self, index: usize) -> bool {
        self.owner.progress.trace(&self.definition.steps[index].name).done
    }

    /// Why this definition cannot go on with the run; none if it can.
    fn problem(&self) -> Option<String> {
        let definition = &self.definition;
        let change = "a definition that was changed needs another version";
        let known = |name: &str| definition.steps.iter().any(|step| &*step.name == name);
        let mut steps = self.owner.progress.known_steps();
        if let Some(step) = steps.find(|step| !known(step)) {
            return Some(format!(
                "it has been at step `{step}`, which this definition lacks; {change}"
            ));
        }
        let mut open = None;
        for stage in &definition.stages {
            for index in stage.clone() {
                let name = &definition.steps[index].name;
                let trace = self.owner.progress.trace(name);
                let begun = trace.done || trace.waiting || trace.work.started > 0;
                if let (Some(before), true) = (open, begun) {
                    return Some(format!(
                        "it has been at step `{name}`, but not through `{before}` before it; {change}"
                    ));
                }
            }
            if let Some(index) = stage.clone().find(|index| !self.is_done(*index)) {
                open.get_or_insert(&definition.steps[index].name);
            }
        }
        if let Err(error) = self.state() {
            return Some(format!("its state cannot be read ({error}); {change}"));
        }
        None
    }

    fn state(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.owner.progress.state)
    }

    /// Gives the run back between two steps, if the owner is to stop.
    async fn stop_if_told(&mut self) -> Result<(), LetGo> {
        if !self.owner.stopping.is_cancelled() {
            return Ok(());
        }
        self.owner.write(RunNext::GiveBack { delay: Duration::ZERO, problem: None }).await?;
        Err(LetGo::GivenBack)
    }

    /// One step that stands alone.
    async fn single(&mut self, step: &Step<T>) -> Result<(), LetGo> {
        match &step.form {
            Form::Wait(wait) => return self.wait(step, wait).await,
            Form::Plain(_) | Form::Transactional(_) => {}
        }
        if self.fails_in_doubt(step) {
            return Ok(());
        }
        loop {
            self.owner.note(EntryKind::Started, &step.name);
            self.owner.flush().await?;
            let (failure, is_final) = match self.attempt(step).await? {
                None => return Ok(()),
                Some(failed) => failed,
            };
            let tries = self.owner.progress.trace(&step.name).work;
            let Some(delay) = next_try(&step.trying, &tries, is_final) else {
                self.fail(step, failure);
                return Ok(());
            };
            self.owner.note_failure(EntryKind::AttemptFailed, &step.name, &failure, false);
            self.wait_for_retry(delay).await?;
        }
    }

    /// One attempt; none if the step is done, and noted as that.
    async fn attempt(&mut self, step: &Step<T>) -> Result<Option<(SagaFailure, bool)>, LetGo> {
        let attempt = self.owner.progress.trace(&step.name).work.started;
        let context = StepContext::new(self.run(), Arc::clone(&step.name), attempt, false);
        let mut state = match self.state() {
            Ok(state) => state,
            Err(error) => return Ok(Some(unreadable(&error))),
        };
        let ended = match &step.form {
            Form::Plain(work) => {
                let work = once(&step.trying, context, || work(state.clone()));
                self.owner.holding(work).await?
            }
            Form::Transactional(work) => {
                let input = state.clone();
                let (tx, ended) = self.in_transaction(work, &step.trying, context, input).await?;
                let failed = match ended {
                    Ok(update) => self.done(step, &mut state, update),
                    Err(failed) => Some(failed),
                };
                let Some((failure, is_final)) = failed else {
                    return self.owner.commit(tx).await.map(|()| None);
                };
                roll_back(tx).await;
                return Ok(Some((unaffected(failure), is_final)));
            }
            Form::Wait(_) => return Ok(None),
        };
        Ok(match ended {
            Ok(update) => self.done(step, &mut state, update),
            Err(failed) => Some(failed),
        })
    }

    /// Notes that a step is done; a state that cannot be written is a failure.
    fn done(
        &mut self,
        step: &Step<T>,
        state: &mut T,
        update: Update<T>,
    ) -> Option<(SagaFailure, bool)> {
        update(state);
        match serde_json::to_string(state) {
            Ok(json) => {
                self.owner.note_done(&step.name, json);
                None
            }
            Err(error) => Some(unreadable(&error)),
        }
    }

    /// Works in a transaction, which is still open at the end if the work is done.
    async fn in_transaction(
        &mut self,
        work: &TransactionalWork<T>,
        trying: &Trying,
        context: StepContext,
        state: T,
    ) -> Result<(crate::store::OwnedTransaction<J::Database>, Attempt<T>), LetGo> {
        let mut tx = self.owner.begin().await?;
        let ended = {
            let erased: &mut (dyn Any + Send) = &mut tx;
            self.owner.holding(once(trying, context, || work(state, erased))).await?
        };
        Ok((tx, ended))
    }

    /// Notes that a step has failed for good.
    fn fail(&mut self, step: &Step<T>, failure: SagaFailure) {
        let tries = self.owner.progress.trace(&step.name).work;
        let in_doubt = matches!(step.form, Form::Plain(_))
            && (tries.unknown || tries.doubts > 0 || failure.is_unknown());
        let failure = doubting(failure, in_doubt);
        let undo = in_doubt || failure.is_unknown() || step.undo_on_failure;
        self.owner.note_failure(EntryKind::Failed, &step.name, &failure, undo);
    }

    /// Whether a step of which it is not known how far it got counts as failed, and is noted so.
    fn fails_in_doubt(&mut self, step: &Step<T>) -> bool {
        let tries = self.owner.progress.trace(&step.name).work;
        if !tries.open {
            return false;
        }
        let doubts = tries.doubts + 1;
        let plain = matches!(step.form, Form::Plain(_));
        let compensate = plain && step.in_doubt == InDoubt::Compensate;
        if doubts < MOST_DOUBTS && !compensate {
            return false;
        }
        self.fail(step, died(doubts, plain));
        true
    }

    /// Steps side by side. Their retries are waited for in the process.
    async fn group(&mut self, stage: Range<usize>) -> Result<(), LetGo> {
        let definition = Arc::clone(&self.definition);
        let left: Vec<usize> = stage.filter(|index| !self.is_done(*index)).collect();
        for index in &left {
            self.fails_in_doubt(&definition.steps[*index]);
        }
        if self.owner.progress.failure.is_some() {
            return Ok(());
        }
        for index in &left {
            self.owner.note(EntryKind::Started, &definition.steps[*index].name);
        }
        self.owner.flush().await?;
        let run = self.run();
        let mut running = FuturesUnordered::new();
        for index in left {
            let step = &definition.steps[index];
            let began_with = self.owner.progress.trace(&step.name).began_with;
            let json = began_with.unwrap_or_else(|| Arc::clone(&self.owner.progress.state));
            let input: Result<T, _> = serde_json::from_str(&json);
            running.push(async move {
                match input {
                    Ok(input) => (index, attempt_step(step, run, &input).await),
                    Err(error) => (index, Err(unreadable(&error).0)),
                }
            });
        }
        while let Some((index, ended)) = self.owner.holding(running.next()).await? {
            let step = &definition.steps[index];
            match (ended, self.state()) {
                (Ok(update), Ok(mut state)) => {
                    if let Some((failure, _)) = self.done(step, &mut state, update) {
                        self.fail(step, failure);
                    }
                }
                (Err(failure), _) => self.fail(step, failure),
                (Ok(_), Err(error)) => self.fail(step, unreadable(&error).0),
            }
            if !running.is_empty() {
                self.owner.flush().await?;
            }
        }
        Ok(())
    }

    /// A step that waits.
    async fn wait(&mut self, step: &Step<T>, wait: &Wait<T>) -> Result<(), LetGo> {
        let waiting = self.owner.progress.trace(&step.name).waiting;
        let (signal, until) = match wait {
            Wait::For(time) => (None, WaitUntil::After(*time)),
            Wait::Answer { within, .. } => (Some(step.name.to_string()), WaitUntil::After(*within)),
            Wait::Until(time) => match self.time_of(time) {
                Ok(time) => (None, WaitUntil::At(time)),
                Err(failure) => {
                    self.fail(step, failure);
                    return Ok(());
                }
            },
        };
        let over = waiting && self.waited.is_some_and(|(_, over)| over);
        // An owner that came before its time waits on, until the same moment.
        let until = match self.waited.filter(|_| waiting) {
            Some((time, _)) => WaitUntil::At(time),
            None => until,
        };
        if !waiting {
            self.owner.note(EntryKind::Waiting, &step.name);
        }
        let Wait::Answer { within, apply, .. } = wait else {
            if over {
                let state = self.owner.progress.state.to_string();
                self.owner.note_done(&step.name, state);
                return Ok(());
            }
            self.owner.write(RunNext::Wait { until, signal }).await?;
            return Err(LetGo::Waiting);
        };
        // An answer counts that has come late, but before anybody has noticed.
        let answer = if over {
            self.answer(&step.name).await?
        } else {
            let next = RunNext::Wait { until, signal };
            Some(self.owner.wait(next, &step.name).await?)
        };
        match answer {
            Some(answer) => self.answered(step, &answer, apply.as_ref()),
            None => self.fail(step, SagaFailure::TimedOut { after: *within }),
        }
        Ok(())
    }

    /// The time that a state says, in milliseconds since the epoch.
    fn time_of(
        &self,
        time: &(dyn Fn(&T) -> chrono::DateTime<chrono::Utc> + Send + Sync),
    ) -> Result<i64, SagaFailure> {
        let state = self.state().map_err(|error| unreadable(&error).0)?;
        guarded(|| Ok(time(&state).timestamp_millis()))
    }

    fn answered(
        &mut self,
        step: &Step<T>,
        answer: &str,
        apply: &(dyn Fn(T, &str) -> Result<T, StepError> + Send + Sync),
    ) {
        let applied = match self.state() {
            Ok(state) => guarded(|| apply(state, answer)),
            Err(error) => Err(unreadable(&error).0),
        };
        match applied {
            Ok(mut state) => {
                let keep = Box::new(|_: &mut T| {});
                if let Some((failure, _)) = self.done(step, &mut state, keep) {
                    self.fail(step, failure);
                }
            }
            Err(failure) => self.fail(step, failure),
        }
    }

    async fn answer(&mut self, name: &str) -> Result<Option<String>, LetGo> {
        let mut tx = self.owner.begin().await?;
        let answer = self.owner.journal.signalled(&mut tx, self.owner.lease.run, name).await;
        answer.map_err(|error| LetGo::Lost(with_causes(&error)))
    }

    /// Undoes what has, or may have, taken effect, the last first.
    async fn backward(&mut self) -> Result<(), LetGo> {
        let definition = Arc::clone(&self.definition);
        // Steps that ran beside the one that failed, in a process that died.
        for step in &definition.steps {
            if self.owner.progress.trace(&step.name).work.open {
                self.fail(step, died(1, true));
            }
        }
        while let Some(name) = self.owner.progress.effective.last().cloned() {
            self.stop_if_told().await?;
            match definition.steps.iter().find(|step| *step.name == *name) {
                Some(step) => self.undo(step).await?,
                None => self.owner.note(EntryKind::PassedOver, &name),
            }
        }
        Ok(())
    }

    async fn undo(&mut self, step: &Step<T>) -> Result<(), LetGo> {
        let Some(undo) = &step.undo else {
            self.owner.note(EntryKind::PassedOver, &step.name);
            return Ok(());
        };
        let tries = self.owner.progress.trace(&step.name).undo;
        if tries.open && tries.doubts + 1 >= MOST_DOUBTS {
            let failure = died(tries.doubts + 1, true);
            self.owner.note_failure(EntryKind::UndoFailed, &step.name, &failure, false);
            return Ok(());
        }
        loop {
            self.owner.note(EntryKind::UndoStarted, &step.name);
            self.owner.flush().await?;
            let (failure, is_final) = match self.attempt_undo(step, undo).await? {
                None => return Ok(()),
                Some(failed) => failed,
            };
            let tries = self.owner.progress.trace(&step.name).undo;
            let Some(delay) = next_try(&step.undoing, &tries, is_final) else {
                self.owner.note_failure(EntryKind::UndoFailed, &step.name, &failure, false);
                return Ok(());
            };
            self.owner.note_failure(EntryKind::UndoAttemptFailed, &step.name, &failure, false);
            self.wait_for_retry(delay).await?;
        }
    }

    async fn attempt_undo(
        &mut self,
        step: &Step<T>,
        undo: &UndoForm<T>,
    ) -> Result<Option<(SagaFailure, bool)>, LetGo> {
        let attempt = self.owner.progress.trace(&step.name).undo.started;
        let context = StepContext::new(self.run(), Arc::clone(&step.name), attempt, true);
        let state = match self.state() {
            Ok(state) => state,
            Err(error) => return Ok(Some(unreadable(&error))),
        };
        match undo {
            UndoForm::Plain(undo) => {
                let undo = once(&step.undoing, context, || undo(state));
                if let Err(failed) = self.owner.holding(undo).await? {
                    return Ok(Some(failed));
                }
                self.owner.note(EntryKind::Undone, &step.name);
            }
            UndoForm::Transactional(undo) => {
                let (tx, ended) = self.in_transaction(undo, &step.undoing, context, state).await?;
                if let Err(failed) = ended {
                    roll_back(tx).await;
                    return Ok(Some(failed));
                }
                self.owner.note(EntryKind::Undone, &step.name);
                self.owner.commit(tx).await?;
            }
        }
        Ok(None)
    }

    /// Waits for the next attempt: here if it is near, else somebody takes the run up again.
    async fn wait_for_retry(&mut self, delay: Duration) -> Result<(), LetGo> {
        if delay >= LONGEST_HELD_WAIT {
            let until = WaitUntil::After(delay);
            self.owner.write(RunNext::Wait { until, signal: None }).await?;
            return Err(LetGo::Waiting);
        }
        self.owner.flush().await?;
        let stopping = self.owner.stopping.clone();
        let pause = async {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stopping.cancelled() => {}
            }
        };
        self.owner.holding(pause).await?;
        self.stop_if_told().await
    }

    fn run(&self) -> uuid::Uuid {
        self.owner.lease.run
    }
}

/// How one attempt ended: with a change of the state, or a failure and whether it is final.
type Attempt<T> = Result<Update<T>, (SagaFailure, bool)>;

/// Rolls back now, so that the locks are free before the next attempt; dropping it would do so later.
async fn roll_back<D: crate::store::Database>(tx: crate::store::OwnedTransaction<D>) {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "a transaction is rolled back with its connection");
    }
}

/// The delay before the next attempt; none if there is no other.
fn next_try(trying: &Trying, tries: &Tries, is_final: bool) -> Option<Duration> {
    let policy: &RetryPolicy = &trying.policy;
    let delay = policy.delay_after(tries.failed.saturating_add(1)).filter(|_| !is_final)?;
    Some(policy.jittered(delay, fastrand::f64()))
}

/// A step that was rolled back has had no effect, whatever it says.
fn unaffected(failure: SagaFailure) -> SagaFailure {
    let text = failure.to_string();
    let source = match failure {
        SagaFailure::Step { source, .. } => source,
        _ => None,
    };
    SagaFailure::Step { text, source, unknown: false }
}

fn died(times: u32, unknown: bool) -> SagaFailure {
    let text = match times {
        1 => "its process ended while it ran".to_owned(),
        times => format!("its process ended {times} times while it ran"),
    };
    SagaFailure::Step { text, source: None, unknown }
}

/// A state that serde cannot write or read; it is of no use to try again.
fn unreadable(error: &serde_json::Error) -> (SagaFailure, bool) {
    let text = format!("the state cannot be written as JSON and read again: {error}");
    (SagaFailure::Step { text, source: None, unknown: true }, true)
}

/// Calls a function of the application, which may panic.
fn guarded<A>(call: impl FnOnce() -> Result<A, StepError>) -> Result<A, SagaFailure> {
    match std::panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.into_failure()),
        Err(_) => Err(SagaFailure::Panicked { text: "while it looked at the state".to_owned() }),
    }
}
