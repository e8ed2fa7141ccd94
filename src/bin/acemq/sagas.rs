//! `acemq sagas`.

use acemq::{
    BoxError,
    saga::{
        JournaledRun, MySqlSagaJournal, PostgresSagaJournal, RunFilter, RunStatus, SagaJournal,
        Settlement, SqliteSagaJournal,
    },
};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    Common, End,
    database::Outbox,
    output::{COLUMNS, Output, fit},
};

#[derive(Subcommand)]
pub enum Command {
    /// Runs that failed and could not be undone, oldest first; exits with 3 if there are any
    Unresolved {
        /// The name of the saga
        saga: String,
        /// At most this many
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// What has happened in a run
    Show {
        /// Its id
        id: Uuid,
    },
    /// Takes an unresolved run off the list, after somebody has put it right
    Resolve {
        /// Its id
        id: Uuid,
        /// What was done about it
        #[arg(long)]
        note: String,
    },
    /// Has the compensations of an unresolved run tried again that failed
    Retry {
        /// Its id
        id: Uuid,
    },
}

pub async fn run(command: Command, common: &Common, output: &Output) -> Result<End, BoxError> {
    let prefix = common.table_prefix.as_str();
    match Outbox::open(common).await? {
        Outbox::Postgres(_, pool) => {
            on(&PostgresSagaJournal::new(pool).table_prefix(prefix)?, command, output).await
        }
        Outbox::MySql(_, pool) => {
            on(&MySqlSagaJournal::new(pool).table_prefix(prefix)?, command, output).await
        }
        Outbox::Sqlite(_, pool) => {
            on(&SqliteSagaJournal::new(pool).table_prefix(prefix)?, command, output).await
        }
    }
}

async fn on(
    journal: &impl SagaJournal,
    command: Command,
    output: &Output,
) -> Result<End, BoxError> {
    journal.check().await?;
    match command {
        Command::Unresolved { saga, limit } => unresolved(journal, &saga, limit, output).await,
        Command::Show { id } => {
            let run = load(journal, id).await?;
            output.print(&value_of(&run), &lines_of(&run))?;
            Ok(End::Done)
        }
        Command::Resolve { id, note } => {
            settle(journal, id, Settlement::Resolve { note: &note }, "resolved", output).await
        }
        Command::Retry { id } => settle(journal, id, Settlement::Retry, "retried", output).await,
    }
}

async fn unresolved(
    journal: &impl SagaJournal,
    saga: &str,
    limit: u32,
    output: &Output,
) -> Result<End, BoxError> {
    let mut runs = Vec::new();
    for id in journal.find(saga, RunFilter::Ended(RunStatus::Unresolved), limit).await? {
        // One that was settled a moment ago may be gone.
        runs.extend(journal.load(id).await?);
    }
    let values: Vec<Value> = runs.iter().map(value_of).collect();
    let mut lines: Vec<String> =
        runs.iter().map(|run| fit(&format!("{}  {}", run.id, run.key), COLUMNS)).collect();
    if lines.is_empty() {
        lines.push("nothing is unresolved".to_owned());
    }
    output.print(&values, &lines)?;
    Ok(if runs.is_empty() { End::Done } else { End::Found })
}

async fn settle(
    journal: &impl SagaJournal,
    id: Uuid,
    how: Settlement<'_>,
    done: &str,
    output: &Output,
) -> Result<End, BoxError> {
    let run = load(journal, id).await?;
    let settled = journal.settle(&run.saga, id, how).await?;
    let line = if settled { format!("{done} {id}") } else { format!("{id} is not unresolved") };
    output.print(&json!({ "id": id.to_string(), "settled": settled }), &[line])?;
    Ok(if settled { End::Done } else { End::Found })
}

async fn load(journal: &impl SagaJournal, id: Uuid) -> Result<JournaledRun, BoxError> {
    journal.load(id).await?.ok_or_else(|| format!("there is no run {id}").into())
}

fn value_of(run: &JournaledRun) -> Value {
    let entries: Vec<Value> = run
        .entries
        .iter()
        .map(|entry| {
            json!({
                "seq": entry.seq, "kind": word(entry.kind.as_str()), "step": entry.step,
                "attempt": entry.attempt, "detail": entry.detail,
            })
        })
        .collect();
    json!({
        "id": run.id.to_string(), "saga": run.saga, "version": run.version, "key": run.key,
        "status": word(run.status.as_str()), "waits_for": run.waits_for,
        "problem": run.problem, "note": run.note, "created_at": time(run.created_at),
        "ended_at": run.ended_at.and_then(time), "entries": entries,
    })
}

/// The journal's word, in the form of JSON.
fn word(of: &str) -> String {
    of.to_ascii_lowercase()
}

fn time(milliseconds: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(milliseconds)
}

fn lines_of(run: &JournaledRun) -> Vec<String> {
    let mut lines = vec![
        format!("run      {}", run.id),
        format!("saga     {} version {}", run.saga, run.version),
        format!("key      {}", run.key),
        format!("status   {}", word(run.status.as_str())),
    ];
    lines.extend(run.problem.iter().map(|problem| format!("problem  {problem}")));
    lines.extend(run.note.iter().map(|note| format!("note     {note}")));
    for entry in &run.entries {
        let detail = entry.detail.as_deref().unwrap_or_default();
        let (kind, step) = (word(entry.kind.as_str()), &entry.step);
        lines.push(format!("  {:<4} {kind:<20} {step} #{}  {detail}", entry.seq, entry.attempt));
    }
    lines.iter().map(|line| fit(line, COLUMNS)).collect()
}
