//! What a journal holds of a run.

use uuid::Uuid;

use crate::telemetry::TraceContext;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunStatus {
    /// It goes forward, or waits.
    Running,
    /// A step has failed, and the steps before it are being compensated.
    Compensating,
    /// Every step was done.
    Complete,
    /// It failed, and every compensation has run.
    Compensated,
    /// It failed, and a compensation did too: somebody has to look at it.
    Unresolved,
    /// Somebody has looked at it.
    Resolved,
}

impl RunStatus {
    /// Returns the word in the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Compensating => "COMPENSATING",
            Self::Complete => "COMPLETE",
            Self::Compensated => "COMPENSATED",
            Self::Unresolved => "UNRESOLVED",
            Self::Resolved => "RESOLVED",
        }
    }

    /// Reads the word in the journal.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::Running,
            Self::Compensating,
            Self::Complete,
            Self::Compensated,
            Self::Unresolved,
            Self::Resolved,
        ]
        .into_iter()
        .find(|status| status.as_str() == word)
    }

    /// Returns whether nothing more happens by itself.
    #[must_use]
    pub fn has_ended(self) -> bool {
        !matches!(self, Self::Running | Self::Compensating)
    }
}

/// One line of a run's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its place, from 1; the owner of the run counts.
    pub seq: i64,
    /// What happened.
    pub kind: EntryKind,
    /// To which step; empty where it concerns the run.
    pub step: String,
    /// Which attempt of the step, or of its compensation, from 1.
    pub attempt: u32,
    /// The state after it, as JSON, where it has changed.
    pub state: Option<String>,
    /// A failure, as JSON.
    pub detail: Option<String>,
}

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// An attempt of a step has begun.
    Started,
    /// An attempt has failed, and there will be another.
    AttemptFailed,
    /// The step is done.
    Done,
    /// The step has failed for good.
    Failed,
    /// The run waits at this step.
    Waiting,
    /// An attempt of a compensation has begun.
    UndoStarted,
    /// An attempt of a compensation has failed, and there will be another.
    UndoAttemptFailed,
    /// The step is undone.
    Undone,
    /// The compensation has failed for good.
    UndoFailed,
    /// The step has no compensation.
    PassedOver,
    /// The compensations that failed are tried again.
    Reopened,
}

impl EntryKind {
    const ALL: [Self; 11] = [
        Self::Started,
        Self::AttemptFailed,
        Self::Done,
        Self::Failed,
        Self::Waiting,
        Self::UndoStarted,
        Self::UndoAttemptFailed,
        Self::Undone,
        Self::UndoFailed,
        Self::PassedOver,
        Self::Reopened,
    ];

    /// Returns the word in the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "STARTED",
            Self::AttemptFailed => "ATTEMPT_FAILED",
            Self::Done => "DONE",
            Self::Failed => "FAILED",
            Self::Waiting => "WAITING",
            Self::UndoStarted => "UNDO_STARTED",
            Self::UndoAttemptFailed => "UNDO_ATTEMPT_FAILED",
            Self::Undone => "UNDONE",
            Self::UndoFailed => "UNDO_FAILED",
            Self::PassedOver => "PASSED_OVER",
            Self::Reopened => "REOPENED",
        }
    }

    /// Reads the word in the journal.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A run as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournaledRun {
    /// Its id.
    pub id: Uuid,
    /// The name of the saga.
    pub saga: String,
    /// The version of the definition that it was started with.
    pub version: u32,
    /// What it is for.
    pub key: String,
    /// Where it stands.
    pub status: RunStatus,
    /// The state that it began with, as JSON.
    pub state: String,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
    /// Whether somebody has a lease on it, which may be over.
    pub leased: bool,
    /// The name of the answer that it waits for.
    pub waits_for: Option<String>,
    /// Until when it waits, in milliseconds since the epoch.
    pub waits_until: Option<i64>,
    /// Whether that time has come, by the database's clock.
    pub wait_is_over: bool,
    /// Why it was given back.
    pub problem: Option<String>,
    /// What an operator has noted.
    pub note: Option<String>,
    /// When it was created, in milliseconds since the epoch.
    pub created_at: i64,
    /// When it ended, in milliseconds since the epoch.
    pub ended_at: Option<i64>,
    /// What has happened, in its order.
    pub entries: Vec<JournalEntry>,
}
