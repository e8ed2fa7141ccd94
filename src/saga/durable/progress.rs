//! How far a run has come: the sum of its journal's entries.
//!
//! The owner of a run applies each entry to its progress as it writes it, and whoever takes the run
//! over applies them again. So both see the same, and nothing is decided by what is not written.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{
    entry::{EntryKind, JournalEntry},
    failure::StoredFailure,
};
use crate::saga::{
    error::SagaFailure,
    outcome::{SagaOutcome, Unresolved},
};

/// How often a step, or its compensation, was tried.
#[derive(Debug, Clone, Default)]
pub(super) struct Tries {
    /// Attempts begun.
    pub(super) started: u32,
    /// Attempts that said that they failed.
    pub(super) failed: u32,
    /// An attempt has begun, and nothing is known of its end.
    pub(super) open: bool,
    /// Attempts of whose end nothing was ever known, before the present one.
    pub(super) doubts: u32,
    /// An attempt has failed with an unknown outcome.
    pub(super) unknown: bool,
}

impl Tries {
    fn start(&mut self) {
        self.doubts += u32::from(self.open);
        self.open = true;
        self.started += 1;
    }

    fn fail(&mut self, unknown: bool) {
        self.open = false;
        self.failed += 1;
        self.unknown |= unknown;
    }
}

/// What is known of a step.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace {
    pub(super) work: Tries,
    pub(super) undo: Tries,
    pub(super) done: bool,
    pub(super) failed: bool,
    pub(super) waiting: bool,
    /// The state when it began, which steps side by side share.
    pub(super) began_with: Option<Arc<str>>,
}

/// How far a run has come.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    /// The sequence number of the last entry.
    seq: i64,
    /// The state, as JSON.
    pub(super) state: Arc<str>,
    traces: HashMap<String, Trace>,
    /// Steps that have, or may have, taken effect and are not undone, in the order of their ends.
    pub(super) effective: Vec<String>,
    pub(super) completed: Vec<String>,
    pub(super) failure: Option<(String, SagaFailure)>,
    pub(super) undone: Vec<String>,
    pub(super) passed_over: Vec<String>,
    pub(super) unresolved: Vec<Unresolved>,
}

impl Progress {
    pub(super) fn new(state: &str) -> Self {
        Self {
            seq: 0,
            state: state.into(),
            traces: HashMap::new(),
            effective: Vec::new(),
            completed: Vec::new(),
            failure: None,
            undone: Vec::new(),
            passed_over: Vec::new(),
            unresolved: Vec::new(),
        }
    }

    /// The progress that a journal tells of.
    pub(super) fn replay(state: &str, entries: &[JournalEntry]) -> Self {
        let mut progress = Self::new(state);
        for entry in entries {
            progress.apply(entry);
        }
        progress
    }

    /// Makes the next entry, and applies it.
    pub(super) fn note(
        &mut self,
        kind: EntryKind,
        step: &str,
        state: Option<String>,
        detail: Option<String>,
    ) -> JournalEntry {
        let trace = self.trace(step);
        let attempt = match kind {
            EntryKind::Started => trace.work.started + 1,
            EntryKind::UndoStarted => trace.undo.started + 1,
            EntryKind::UndoAttemptFailed | EntryKind::Undone | EntryKind::UndoFailed => {
                trace.undo.started
            }
            _ => trace.work.started,
        };
        let seq = self.seq + 1;
        let entry = JournalEntry { seq, kind, step: step.to_owned(), attempt, state, detail };
        self.apply(&entry);
        entry
    }

    pub(super) fn trace(&self, step: &str) -> Trace {
        self.traces.get(step).cloned().unwrap_or_default()
    }

    /// The names of the steps of which anything is known.
    pub(super) fn known_steps(&self) -> impl Iterator<Item = &str> {
        self.traces.keys().map(String::as_str)
    }

    fn apply(&mut self, entry: &JournalEntry) {
        self.seq = entry.seq;
        if entry.kind == EntryKind::Reopened {
            return self.reopen();
        }
        let step = entry.step.clone();
        let state = Arc::clone(&self.state);
        let trace = self.traces.entry(step.clone()).or_default();
        let stored = || StoredFailure::read(entry.detail.as_deref());
        match entry.kind {
            EntryKind::Started => {
                trace.began_with.get_or_insert(state);
                trace.work.start();
            }
            EntryKind::AttemptFailed => trace.work.fail(stored().is_unknown()),
            EntryKind::Waiting => trace.waiting = true,
            EntryKind::Done => {
                trace.work.open = false;
                trace.done = true;
                if let Some(state) = &entry.state {
                    self.state = state.as_str().into();
                }
                self.effective.push(step.clone());
                self.completed.push(step);
            }
            EntryKind::Failed => {
                let stored = stored();
                trace.work.fail(stored.is_unknown());
                trace.failed = true;
                if stored.undo {
                    self.effective.push(step.clone());
                }
                self.failure.get_or_insert_with(|| (step, stored.into_failure()));
            }
            EntryKind::UndoStarted => trace.undo.start(),
            EntryKind::UndoAttemptFailed => trace.undo.fail(stored().is_unknown()),
            EntryKind::Undone => {
                trace.undo.open = false;
                self.settled(&step);
                self.undone.push(step);
            }
            EntryKind::UndoFailed => {
                let stored = stored();
                trace.undo.fail(stored.is_unknown());
                self.settled(&step);
                self.unresolved.push(Unresolved { step, error: stored.into_failure() });
            }
            EntryKind::PassedOver => {
                self.settled(&step);
                self.passed_over.push(step);
            }
            EntryKind::Reopened => {}
        }
    }

    fn settled(&mut self, step: &str) {
        self.effective.retain(|effective| effective != step);
    }

    /// What could not be undone is to be undone again, in the same order as before.
    fn reopen(&mut self) {
        let mut again = VecDeque::new();
        for Unresolved { step, .. } in self.unresolved.drain(..) {
            if let Some(trace) = self.traces.get_mut(&step) {
                trace.undo = Tries { started: trace.undo.started, ..Tries::default() };
            }
            again.push_front(step);
        }
        self.effective = again.into();
    }

    /// The outcome, with a state that was read from this one's.
    pub(super) fn outcome<T>(&self, state: T) -> SagaOutcome<T> {
        SagaOutcome {
            state,
            completed: self.completed.clone(),
            failure: self.failure.clone().map(|(step, failure)| (Some(step), failure)),
            undone: self.undone.clone(),
            passed_over: self.passed_over.clone(),
            unresolved: self.unresolved.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn unknown() -> SagaFailure {
        SagaFailure::TimedOut { after: Duration::from_secs(3) }
    }

    #[test]
    fn a_replayed_journal_tells_what_the_owner_knew() {
        let mut live = Progress::new("0");
        let mut entries = Vec::new();
        let mut note = |kind, step, state: Option<&str>, detail| {
            entries.push(live.note(kind, step, state.map(str::to_owned), detail));
        };
        note(EntryKind::Started, "a", None, None);
        note(EntryKind::AttemptFailed, "a", None, StoredFailure::json(&unknown(), false));
        note(EntryKind::Started, "a", None, None);
        note(EntryKind::Done, "a", Some("1"), None);
        note(EntryKind::Started, "b", None, None);
        note(EntryKind::Started, "b", None, None);
        note(EntryKind::Failed, "b", None, StoredFailure::json(&unknown(), true));
        note(EntryKind::UndoStarted, "b", None, None);
        note(EntryKind::UndoFailed, "b", None, StoredFailure::json(&unknown(), false));
        note(EntryKind::PassedOver, "a", None, None);
        let replayed = Progress::replay("0", &entries);
        assert_eq!(format!("{live:?}").len(), format!("{replayed:?}").len());
        for progress in [&live, &replayed] {
            assert_eq!(&*progress.state, "1");
            assert_eq!(progress.completed, ["a"]);
            assert_eq!(progress.passed_over, ["a"]);
            assert_eq!(progress.unresolved[0].step, "b");
            assert!(progress.effective.is_empty());
            let b = progress.trace("b");
            assert_eq!((b.work.started, b.work.doubts, b.work.open), (2, 1, false));
            assert_eq!(progress.trace("a").work.failed, 1);
        }
    }

    #[test]
    fn a_reopened_run_undoes_again_what_could_not_be_undone() {
        let mut progress = Progress::new("0");
        for step in ["a", "b", "c"] {
            progress.note(EntryKind::Started, step, None, None);
            progress.note(EntryKind::Done, step, None, None);
        }
        progress.note(EntryKind::UndoStarted, "c", None, None);
        progress.note(EntryKind::UndoFailed, "c", None, None);
        progress.note(EntryKind::UndoStarted, "b", None, None);
        progress.note(EntryKind::Undone, "b", None, None);
        progress.note(EntryKind::UndoStarted, "a", None, None);
        progress.note(EntryKind::UndoFailed, "a", None, None);
        assert!(progress.effective.is_empty());
        progress.note(EntryKind::Reopened, "", None, None);
        assert_eq!(progress.effective, ["a", "c"]);
        assert!(progress.unresolved.is_empty());
    }
}
