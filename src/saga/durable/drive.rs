//! Driving a run: forward through its steps, and backward after a failure, with a journal.

use std::{any::Any, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    entry::RunStatus,
    journal::{RunNext, SagaJournal, WaitUntil},
    owner::{LetGo, Owner},
    progress::Tries,
    wait::TransactionalWork,
};
use crate::{
    consume::RetryPolicy,
    saga::{
        context::StepContext,
        definition::Definition,
        error::SagaFailure,
        run::once,
        step::{Trying, Update},
    },
    telemetry::metric::SAGA_RUN_TOTAL,
};

/// A retry this far away, or farther, is not waited for by the process.
const LONGEST_HELD_WAIT: Duration = Duration::from_secs(5);

/// How many processes may die over one step before it counts as failed: it may be what kills them.
pub(super) const MOST_DOUBTS: u32 = 5;

/// For how long a run is left alone that this definition cannot go on with.
pub(super) const ALIEN_DELAY: Duration = Duration::from_mins(1);

/// For how long a run is left alone after its owner has lost sight of the journal.
pub(super) const AFTER_LOSS: Duration = Duration::from_millis(200);

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
    pub(super) async fn drive(&mut self) -> Result<RunStatus, LetGo> {
        let walked = self.walk().await;
        match &walked {
            Err(LetGo::Lost(reason)) => {
                let run = self.owner.lease.run;
                tracing::warn!(saga = self.definition.name, %run, reason, "let go of a run");
                // If the lease is still this one's, another may take it at once.
                self.owner.give_up(AFTER_LOSS, None).await;
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
        let (saga, outcome) = (self.definition.name.clone(), outcome(status));
        metrics::counter!(SAGA_RUN_TOTAL, "saga" => saga, "outcome" => outcome).increment(1);
        Ok(status)
    }

    pub(super) fn is_done(&self, index: usize) -> bool {
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

    pub(super) fn state(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.owner.progress.state)
    }

    /// Gives the run back between two steps, if the owner is to stop.
    pub(super) async fn stop_if_told(&mut self) -> Result<(), LetGo> {
        if !self.owner.stopping.is_cancelled() {
            return Ok(());
        }
        self.owner.write(RunNext::GiveBack { delay: Duration::ZERO, problem: None }).await?;
        Err(LetGo::GivenBack)
    }

    /// Works in a transaction, which is still open at the end if the work is done.
    pub(super) async fn in_transaction(
        &mut self,
        work: &TransactionalWork<T>,
        trying: &Trying,
        context: StepContext,
        state: T,
    ) -> Result<(crate::store::OwnedTransaction<J::Database>, Attempt<T>), LetGo> {
        let mut tx = self.owner.begin().await?;
        let ended = {
            let erased: &mut (dyn Any + Send) = &mut tx;
            self.owner.fenced(once(trying, context, || work(state, erased))).await?
        };
        Ok((tx, ended))
    }

    /// Waits for the next attempt: here if it is near, else somebody takes the run up again.
    pub(super) async fn wait_for_retry(&mut self, delay: Duration) -> Result<(), LetGo> {
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

    pub(super) fn run(&self) -> uuid::Uuid {
        self.owner.lease.run
    }
}

/// The word of a metric.
fn outcome(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Complete => "complete",
        RunStatus::Unresolved => "unresolved",
        _ => "compensated",
    }
}

/// How one attempt ended: with a change of the state, or a failure and whether it is final.
type Attempt<T> = Result<Update<T>, (SagaFailure, bool)>;

/// Rolls back now, so that the locks are free before the next attempt; dropping it would do so later.
pub(super) async fn roll_back<D: crate::store::Database>(tx: crate::store::OwnedTransaction<D>) {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "a transaction is rolled back with its connection");
    }
}

/// The delay before the next attempt; none if there is no other.
pub(super) fn next_try(trying: &Trying, tries: &Tries, is_final: bool) -> Option<Duration> {
    let policy: &RetryPolicy = &trying.policy;
    let delay = policy.delay_after(tries.failed.saturating_add(1)).filter(|_| !is_final)?;
    Some(policy.jittered(delay, fastrand::f64()))
}

pub(super) fn died(times: u32, unknown: bool) -> SagaFailure {
    let text = match times {
        1 => "its process ended while it ran".to_owned(),
        times => format!("its process ended {times} times while it ran"),
    };
    SagaFailure::Step { text, source: None, unknown }
}

/// A state that serde cannot write or read; it is of no use to try again.
pub(super) fn unreadable(error: &serde_json::Error) -> (SagaFailure, bool) {
    let text = format!("the state cannot be written as JSON and read again: {error}");
    (SagaFailure::Step { text, source: None, unknown: true }, true)
}
