//! What can be asked of a durable saga's runs, and done about them.

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{
    entry::RunStatus,
    journal::{RunFilter, SagaJournal, Settlement, commit},
    owner::in_time,
    service::{DurableSaga, undecodable, unencodable},
    status::SagaRun,
    wait::Wait,
};
use crate::{
    error::{Error, Result},
    saga::step::Form,
    store::{OwnedTransaction, run_to_end},
};

/// A note of an operator is cut to this many characters.
const LONGEST_NOTE: usize = 4000;

impl<T, J> DurableSaga<T, J>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    J: SagaJournal,
{
    /// Returns what the journal knows of a run; none if this saga has no such run.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the database fails.
    pub async fn status(&self, id: Uuid) -> Result<Option<SagaRun>> {
        let run = in_time(self.core.journal.load(id)).await?;
        Ok(run.filter(|run| run.saga == self.name()).map(SagaRun::new))
    }

    /// Returns what the journal knows of the run of a key.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the database fails.
    pub async fn status_of(&self, key: &str) -> Result<Option<SagaRun>> {
        let found = self.core.journal.find(self.name(), RunFilter::Key(key), 1);
        match in_time(found).await?.first() {
            Some(id) => self.status(*id).await,
            None => Ok(None),
        }
    }

    /// Lists the runs, of all versions, that failed and could not be undone, the oldest first.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the database fails.
    pub async fn unresolved(&self, limit: u32) -> Result<Vec<SagaRun>> {
        let which = RunFilter::Ended(RunStatus::Unresolved);
        let mut runs = Vec::new();
        for id in in_time(self.core.journal.find(self.name(), which, limit)).await? {
            // One that was settled a moment ago may be gone.
            runs.extend(self.status(id).await?);
        }
        Ok(runs)
    }

    /// Counts the runs, of all versions, that failed and could not be undone: a number for health
    /// checks and alarms, which is zero in a healthy system.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the database fails.
    pub async fn unresolved_count(&self) -> Result<u64> {
        in_time(self.core.journal.count(self.name(), RunStatus::Unresolved)).await
    }

    /// Takes an unresolved run off the list, after somebody has put it right; returns whether it was
    /// on it.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the database fails.
    pub async fn resolve(&self, id: Uuid, note: &str) -> Result<bool> {
        let note: String = note.replace('\0', "\u{fffd}").chars().take(LONGEST_NOTE).collect();
        let how = Settlement::Resolve { note: &note };
        in_time(self.core.journal.settle(self.name(), id, how)).await
    }

    /// Has the compensations of an unresolved run tried again that failed, and no others; returns
    /// whether it was unresolved.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the database fails.
    pub async fn retry_compensation(&self, id: Uuid) -> Result<bool> {
        let settled = self.core.journal.settle(self.name(), id, Settlement::Retry);
        let settled = in_time(settled).await?;
        self.core.wake.notify_one();
        Ok(settled)
    }

    /// Gives an answer to the step of this name that a run waits at, or will wait at.
    ///
    /// The first answer of a name counts: returns `false`, and changes nothing, if there was one, or
    /// if the run has ended or is not there. So it can be called from a consumer, which may get its
    /// message twice.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] if the definition does not wait for an answer of this name.
    /// - [`Error::Codec`] for an answer that is not what the step takes.
    /// - [`Error::Store`] if the database fails.
    pub async fn signal<P: Serialize + ?Sized>(
        &self,
        id: Uuid,
        name: &str,
        answer: &P,
    ) -> Result<bool> {
        let answer = self.answer_json(name, answer)?;
        let (journal, name) = (self.core.journal.clone(), name.to_owned());
        let signalled = run_to_end("signal a run", async move {
            let mut tx = journal.begin().await?;
            let signalled = journal.signal(&mut tx, id, &name, &answer).await?;
            commit(tx).await?;
            Ok(signalled)
        });
        let signalled = in_time(signalled).await?;
        self.core.wake.notify_one();
        Ok(signalled)
    }

    /// Does what [`signal`](Self::signal) does in the caller's transaction, such as the one of a
    /// transactional consumer.
    ///
    /// # Errors
    ///
    /// Those of [`signal`](Self::signal).
    pub async fn signal_in<P: Serialize + ?Sized>(
        &self,
        transaction: &mut OwnedTransaction<J::Database>,
        id: Uuid,
        name: &str,
        answer: &P,
    ) -> Result<bool> {
        let answer = self.answer_json(name, answer)?;
        self.core.journal.signal(transaction, id, name, &answer).await
    }

    fn answer_json<P: Serialize + ?Sized>(&self, name: &str, answer: &P) -> Result<String> {
        let step = self.core.definition.steps.iter().find(|step| *step.name == *name);
        let Some(Form::Wait(Wait::Answer { check, .. })) = step.map(|step| &step.form) else {
            return Err(Error::invalid("name", name, "is no step that waits for an answer"));
        };
        let json = serde_json::to_string(answer).map_err(unencodable)?;
        check(&json).map_err(undecodable)?;
        Ok(json)
    }
}
