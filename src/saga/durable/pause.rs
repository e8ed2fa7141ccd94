//! Steps that wait, without a task: the run is let go, and is due again when its time comes.

use std::panic::AssertUnwindSafe;

use super::{
    drive::{Drive, State, unreadable},
    entry::EntryKind,
    journal::{RunNext, SagaJournal, WaitUntil},
    owner::LetGo,
    wait::{ApplyAnswer, TimeOf, Wait},
};
use crate::{
    error::with_causes,
    saga::{
        error::{SagaFailure, StepError},
        step::Step,
    },
};

impl<T: State, J: SagaJournal> Drive<T, J> {
    /// A step that waits.
    pub(super) async fn wait(&mut self, step: &Step<T>, wait: &Wait<T>) -> Result<(), LetGo> {
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
    fn time_of(&self, time: &TimeOf<T>) -> Result<i64, SagaFailure> {
        let state = self.state().map_err(|error| unreadable(&error).0)?;
        guarded(|| Ok(time(&state).timestamp_millis()))
    }

    fn answered(&mut self, step: &Step<T>, answer: &str, apply: &ApplyAnswer<T>) {
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
}

/// Calls a function of the application, which may panic.
fn guarded<A>(call: impl FnOnce() -> Result<A, StepError>) -> Result<A, SagaFailure> {
    match std::panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.into_failure()),
        Err(_) => Err(SagaFailure::Panicked { text: "while it looked at the state".to_owned() }),
    }
}
