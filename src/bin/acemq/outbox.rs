//! `acemq outbox`.

use std::time::Duration;

use acemq::{BoxError, outbox::RetiredRecord};
use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    Common, End,
    database::Outbox,
    output::{COLUMNS, Output, age, ask, fit},
};

/// How many rows one statement of a purge deletes.
const PURGE_BATCH: u32 = 1000;

/// How many retired rows are counted at most.
const COUNTED: u32 = 10_000;

#[derive(Subcommand)]
pub enum Command {
    /// How many records wait, how old the oldest is, and how many were retired
    Status {
        /// Exit with 3 if the oldest record that is due has waited longer than this, or if any
        /// was retired
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        alarm_after: Option<Duration>,
    },
    /// Records that were given up, oldest first
    Retired {
        /// At most this many
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Gives retired records all their attempts again
    Requeue {
        /// Their sequence numbers, as `retired` shows them
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        seqs: Vec<i64>,
        /// All of them
        #[arg(long)]
        all: bool,
    },
    /// Deletes published records
    Purge {
        /// Only what was published longer ago
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        older_than: Duration,
    },
}

pub async fn run(command: Command, common: &Common, output: &Output) -> Result<End, BoxError> {
    let outbox = Outbox::open(common).await?;
    outbox.check().await?;
    match command {
        Command::Status { alarm_after } => status(&outbox, alarm_after, output).await,
        Command::Retired { limit } => retired(&outbox, limit, output).await,
        Command::Requeue { seqs, all } => requeue(&outbox, seqs, all, common.yes, output).await,
        Command::Purge { older_than } => purge(&outbox, older_than, common.yes, output).await,
    }
}

async fn status(
    outbox: &Outbox,
    alarm_after: Option<Duration>,
    output: &Output,
) -> Result<End, BoxError> {
    let pending = outbox.pending_count().await?;
    let oldest = outbox.oldest_pending_age().await?;
    let retired = outbox.retired(COUNTED).await?.len();
    let waiting = pending.saturating_sub(retired as u64);
    let value = json!({
        "waiting": waiting,
        "oldest_due_seconds": oldest.map(|age| age.as_secs_f64()),
        "retired": retired,
    });
    let counted = if retired == COUNTED as usize { " or more" } else { "" };
    let lines = [
        format!("waiting   {waiting}"),
        format!("oldest    {}", oldest.map_or("nothing is due".to_owned(), age)),
        format!("retired   {retired}{counted}"),
    ];
    output.print(&value, &lines)?;
    let is_late = |limit| retired > 0 || oldest.is_some_and(|age| age > limit);
    Ok(if alarm_after.is_some_and(is_late) { End::Found } else { End::Done })
}

async fn retired(outbox: &Outbox, limit: u32, output: &Output) -> Result<End, BoxError> {
    let records = outbox.retired(limit).await?;
    let value: Vec<Value> = records.iter().map(record).collect();
    let mut lines: Vec<String> = records.iter().flat_map(lines_of).collect();
    if lines.is_empty() {
        lines.push("nothing was retired".to_owned());
    }
    output.print(&value, &lines)?;
    Ok(End::Done)
}

fn record(of: &RetiredRecord) -> Value {
    json!({
        "seq": of.seq, "id": of.id, "exchange": of.exchange, "routing_key": of.routing_key,
        "ordering_key": of.ordering_key, "attempts": of.attempts, "last_error": of.last_error,
        "created_at": of.created_at, "retired_at": of.retired_at,
    })
}

fn lines_of(of: &RetiredRecord) -> [String; 2] {
    let target = format!("{}/{}", of.exchange, of.routing_key);
    let when = of.retired_at.format("%F %T");
    [
        fit(&format!("{:<8} {when}  {} attempts  to {target}", of.seq, of.attempts), COLUMNS),
        fit(&format!("         {}", of.last_error), COLUMNS),
    ]
}

async fn requeue(
    outbox: &Outbox,
    seqs: Vec<i64>,
    all: bool,
    yes: bool,
    output: &Output,
) -> Result<End, BoxError> {
    let seqs = if all {
        outbox.retired(COUNTED).await?.iter().map(|record| record.seq).collect()
    } else {
        seqs
    };
    if seqs.len() > 1 && !ask(&format!("Requeue {} records?", seqs.len()), yes)? {
        return Ok(End::Done);
    }
    let requeued = outbox.requeue(&seqs).await?;
    let missing = seqs.len() as u64 - requeued;
    let mut lines = vec![format!("requeued {requeued}")];
    if missing > 0 {
        lines.push(format!("{missing} are not retired, and were left alone"));
    }
    output.print(&json!({ "requeued": requeued, "not_retired": missing }), &lines)?;
    Ok(if missing > 0 { End::Found } else { End::Done })
}

async fn purge(
    outbox: &Outbox,
    older_than: Duration,
    yes: bool,
    output: &Output,
) -> Result<End, BoxError> {
    let question = format!("Delete what was published more than {} ago?", age(older_than));
    if !ask(&question, yes)? {
        return Ok(End::Done);
    }
    let mut deleted = 0;
    loop {
        let batch = outbox.purge(older_than, PURGE_BATCH).await?;
        deleted += batch;
        if batch < u64::from(PURGE_BATCH) {
            break;
        }
    }
    output.print(&json!({ "deleted": deleted }), &[format!("deleted {deleted}")])?;
    Ok(End::Done)
}
