//! The owner of a run: it holds the lease, and writes the journal.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    entry::{EntryKind, JournalEntry},
    failure::StoredFailure,
    journal::{self, RunLease, RunNext, SagaJournal},
    progress::Progress,
};
use crate::{
    backoff::Backoff,
    error::{Error, Result, with_causes},
    saga::error::SagaFailure,
    store::{OwnedTransaction, begun, commit},
};

/// How long one call of the journal may take: a half-open connection would hold it for ever.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why an owner lets go of a run that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LetGo {
    /// It waits, and will be due.
    Waiting,
    /// The owner was told to stop, or the run is none of this definition's.
    GivenBack,
    /// The lease is over, or somebody else has it, or the journal did not answer.
    Lost(String),
}

impl LetGo {
    fn taken() -> Self {
        Self::Lost("another process has the run".to_owned())
    }
}

/// One owner of one run.
pub(super) struct Owner<J> {
    pub(super) journal: J,
    pub(super) lease: RunLease,
    pub(super) length: Duration,
    /// The local time at which the lease ends, at the latest.
    ends: Instant,
    pub(super) stopping: CancellationToken,
    pub(super) progress: Progress,
    /// Entries that are applied and not yet written.
    pending: Vec<JournalEntry>,
}

impl<J: SagaJournal> Owner<J> {
    /// `since` is a time before the lease was taken.
    pub(super) fn new(
        journal: J,
        lease: RunLease,
        (since, length): (Instant, Duration),
        stopping: CancellationToken,
        progress: Progress,
    ) -> Self {
        let ends = since + length;
        Self { journal, lease, length, ends, stopping, progress, pending: Vec::new() }
    }

    pub(super) fn note(&mut self, kind: EntryKind, step: &str) {
        let entry = self.progress.note(kind, step, None, None);
        self.pending.push(entry);
    }

    pub(super) fn note_done(&mut self, step: &str, state: String) {
        let entry = self.progress.note(EntryKind::Done, step, Some(state), None);
        self.pending.push(entry);
    }

    /// `undo` says whether the step that failed is compensated itself.
    pub(super) fn note_failure(
        &mut self,
        kind: EntryKind,
        step: &str,
        failure: &SagaFailure,
        undo: bool,
    ) {
        let detail = StoredFailure::json(failure, undo);
        let entry = self.progress.note(kind, step, None, detail);
        self.pending.push(entry);
    }

    fn keep(&self) -> RunNext {
        RunNext::Keep { lease: self.length, compensating: self.progress.failure.is_some() }
    }

    /// Writes what is pending and keeps the run.
    pub(super) async fn flush(&mut self) -> Result<(), LetGo> {
        let keep = self.keep();
        self.write(keep).await
    }

    /// Writes what is pending, and what becomes of the run; tries again for as long as the lease
    /// holds.
    pub(super) async fn write(&mut self, next: RunNext) -> Result<(), LetGo> {
        let entries = std::mem::take(&mut self.pending);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut last_error = None;
        loop {
            let ends = Instant::now() + self.length;
            match in_time(self.journal.write(&self.lease, &entries, &next)).await {
                Ok(true) => {
                    self.ends = ends;
                    return Ok(());
                }
                // A write that failed may have taken effect, and have given the lease up.
                Ok(false) if last_error.is_some() && next.gives_up() => return Ok(()),
                Ok(false) => return Err(LetGo::taken()),
                Err(error) => {
                    let text = with_causes(&error);
                    let wait = backoff.next();
                    if Instant::now() + wait >= self.ends {
                        return Err(LetGo::Lost(text));
                    }
                    last_error = Some(text);
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Lets the run wait, unless the answer that it waits for is there already.
    pub(super) async fn wait(&mut self, next: RunNext, signal: &str) -> Result<String, LetGo> {
        let entries = std::mem::take(&mut self.pending);
        let waited = in_time(self.try_to_wait(&entries, &next, signal)).await;
        match waited {
            Ok(Some(answer)) => {
                self.pending = entries;
                Ok(answer)
            }
            Ok(None) => Err(LetGo::Waiting),
            // Whoever takes the run over finds out.
            Err(error) => Err(LetGo::Lost(with_causes(&error))),
        }
    }

    async fn try_to_wait(
        &self,
        entries: &[JournalEntry],
        next: &RunNext,
        signal: &str,
    ) -> Result<Option<String>> {
        let mut tx = self.journal.begin().await?;
        if !self.journal.record(&mut tx, &self.lease, entries, next).await? {
            return Err(Error::Closed);
        }
        let answer = self.journal.signalled(&mut tx, self.lease.run, signal).await?;
        if answer.is_some() {
            tx.rollback().await.map_err(crate::store::failed("roll back"))?;
        } else {
            journal::commit(tx).await?;
        }
        Ok(answer)
    }

    /// Begins a transaction for a step.
    pub(super) async fn begin(&self) -> Result<OwnedTransaction<J::Database>, LetGo> {
        let begin = async {
            let mut tx = self.journal.begin().await?;
            begun(&mut tx).await?;
            Ok(tx)
        };
        in_time(begin).await.map_err(|error| LetGo::Lost(with_causes(&error)))
    }

    /// Commits a step's transaction with the entries that are pending. If it fails, nobody knows
    /// here whether it has committed: the run is let go, and the journal tells the next owner.
    pub(super) async fn commit(
        &mut self,
        mut tx: OwnedTransaction<J::Database>,
    ) -> Result<(), LetGo> {
        let entries = std::mem::take(&mut self.pending);
        let (keep, ends) = (self.keep(), Instant::now() + self.length);
        let committed = in_time(async {
            let held = self.journal.record(&mut tx, &self.lease, &entries, &keep).await?;
            if held {
                commit(tx).await?;
            }
            Ok(held)
        });
        match committed.await {
            Ok(true) => {
                self.ends = ends;
                Ok(())
            }
            Ok(false) => Err(LetGo::taken()),
            Err(error) => Err(LetGo::Lost(with_causes(&error))),
        }
    }

    /// Does some work while the lease is being renewed; gives up both when it is lost.
    pub(super) async fn holding<A>(&mut self, work: impl Future<Output = A>) -> Result<A, LetGo> {
        let mut ends = self.ends;
        let done = tokio::select! {
            done = work => Ok(done),
            lost = renew(&self.journal, &self.lease, self.length, &mut ends) => Err(lost.into()),
        };
        self.ends = ends;
        done
    }

    /// Does what [`holding`](Self::holding) does with work that commits only with the token: it goes
    /// on when its lease cannot be renewed, as on SQLite, where it holds the only write lock itself.
    pub(super) async fn fenced<A>(&mut self, work: impl Future<Output = A>) -> Result<A, LetGo> {
        let mut ends = self.ends;
        let mut work = std::pin::pin!(work);
        let done = tokio::select! {
            done = &mut work => Ok(done),
            lost = renew(&self.journal, &self.lease, self.length, &mut ends) => match lost {
                Lost::Taken => Err(lost.into()),
                Lost::Over(_) => Ok(work.await),
            },
        };
        self.ends = ends;
        done
    }

    /// Gives the lease back after something went wrong, so that nobody has to wait for its end.
    pub(super) async fn give_up(&self, delay: Duration, problem: Option<String>) {
        give_up(&self.journal, &self.lease, delay, problem).await;
    }
}

/// Gives a lease back; if that fails, it ends by itself.
pub(super) async fn give_up<J: SagaJournal>(
    journal: &J,
    lease: &RunLease,
    delay: Duration,
    problem: Option<String>,
) {
    let next = RunNext::GiveBack { delay, problem };
    if let Err(error) = in_time(journal.write(lease, &[], &next)).await {
        tracing::debug!(run = %lease.run, %error, "a run is left to the end of its lease");
    }
}

/// How a lease was lost.
enum Lost {
    /// Another process has the run.
    Taken,
    /// It could not be renewed in time.
    Over(String),
}

impl From<Lost> for LetGo {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Taken => Self::taken(),
            Lost::Over(reason) => Self::Lost(reason),
        }
    }
}

/// Renews a lease until it is lost; returns why it was.
async fn renew<J: SagaJournal>(
    journal: &J,
    lease: &RunLease,
    length: Duration,
    ends: &mut Instant,
) -> Lost {
    let mut last_error = "its lease is over".to_owned();
    let mut next = length / 3;
    loop {
        let wake = (Instant::now() + next).min(*ends);
        tokio::time::sleep_until(wake).await;
        let now = Instant::now();
        if now >= *ends {
            return Lost::Over(last_error);
        }
        let left = ends.saturating_duration_since(now);
        match tokio::time::timeout(left, journal.renew(lease, length)).await {
            Ok(Ok(true)) => {
                *ends = now + length;
                next = length / 3;
            }
            Ok(Ok(false)) => return Lost::Taken,
            Ok(Err(error)) => {
                last_error = with_causes(&error);
                next = length / 20;
            }
            Err(_) => return Lost::Over(last_error),
        }
    }
}

/// Bounds one call of the journal.
pub(super) async fn in_time<R>(work: impl Future<Output = Result<R>>) -> Result<R> {
    match tokio::time::timeout(JOURNAL_TIMEOUT, work).await {
        Ok(result) => result,
        Err(elapsed) => Err(Error::Store { action: "answer in time", source: elapsed.into() }),
    }
}
