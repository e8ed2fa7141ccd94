//! Backward: undoing what has, or may have, taken effect.

use std::sync::Arc;

use super::{
    drive::{Drive, MOST_DOUBTS, State, died, next_try, roll_back, unreadable},
    entry::EntryKind,
    journal::SagaJournal,
    owner::LetGo,
};
use crate::saga::{
    context::StepContext,
    error::SagaFailure,
    run::once,
    step::{Step, UndoForm},
};

impl<T: State, J: SagaJournal> Drive<T, J> {
    /// Undoes what has, or may have, taken effect, the last first.
    pub(super) async fn backward(&mut self) -> Result<(), LetGo> {
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
            let Some((failure, is_final)) = self.attempt_undo(step, undo).await? else {
                return Ok(());
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
}
