//! Forward: the steps of a run, each alone or side by side.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use futures::{Stream, StreamExt, stream::FuturesUnordered};

use super::{
    drive::{Drive, MOST_DOUBTS, State, died, next_try, roll_back, unreadable},
    entry::EntryKind,
    journal::SagaJournal,
    owner::LetGo,
};
use crate::saga::{
    context::StepContext,
    error::SagaFailure,
    run::{attempt_step, doubting, once},
    step::{Form, InDoubt, Step, Update},
};

impl<T: State, J: SagaJournal> Drive<T, J> {
    /// One step that stands alone.
    pub(super) async fn single(&mut self, step: &Step<T>) -> Result<(), LetGo> {
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
            let Some((failure, is_final)) = self.attempt(step).await? else { return Ok(()) };
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
    pub(super) fn done(
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

    /// Notes that a step has failed for good.
    pub(super) fn fail(&mut self, step: &Step<T>, failure: SagaFailure) {
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
    pub(super) async fn group(&mut self, stage: Range<usize>) -> Result<(), LetGo> {
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
        let mut ended = VecDeque::new();
        loop {
            let next = match ended.pop_front() {
                Some(next) => Some(next),
                None => self.owner.holding(running.next()).await?,
            };
            let Some((index, outcome)) = next else { return Ok(()) };
            let step = &definition.steps[index];
            match (outcome, self.state()) {
                (Ok(update), Ok(mut now)) => {
                    if let Some((failure, _)) = self.done(step, &mut now, update) {
                        self.fail(step, failure);
                    }
                }
                (Err(failure), _) => self.fail(step, failure),
                (Ok(_), Err(error)) => self.fail(step, unreadable(&error).0),
            }
            if !running.is_empty() {
                beside(self.owner.flush(), &mut running, &mut ended).await?;
            }
        }
    }
}

/// Awaits the journal while the steps go on: one that stood still with a connection in its hands
/// might keep the journal from its own.
async fn beside<A, S: Stream + Unpin>(
    journal: impl Future<Output = A>,
    running: &mut S,
    ended: &mut VecDeque<S::Item>,
) -> A {
    let mut journal = std::pin::pin!(journal);
    loop {
        tokio::select! {
            done = &mut journal => return done,
            Some(one) = running.next() => ended.push_back(one),
        }
    }
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
