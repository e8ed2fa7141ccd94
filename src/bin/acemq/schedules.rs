//! `acemq schedules`: the delayed records of an outbox.

use acemq::{BoxError, outbox::ScheduledRecord};
use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    Common, End,
    database::Outbox,
    output::{COLUMNS, Output, ask, fit},
};

#[derive(Subcommand)]
pub enum Command {
    /// Records whose time has not come, the next one first
    List {
        /// At most this many
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Takes records back, by their message ids, unless their time has come
    Cancel {
        /// The ids, as `list` shows them
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

pub async fn run(command: Command, common: &Common, output: &Output) -> Result<End, BoxError> {
    let outbox = Outbox::open(common).await?;
    outbox.check().await?;
    match command {
        Command::List { limit } => list(&outbox, limit, output).await,
        Command::Cancel { ids } => cancel(&outbox, &ids, common.yes, output).await,
    }
}

async fn list(outbox: &Outbox, limit: u32, output: &Output) -> Result<End, BoxError> {
    let records = outbox.scheduled(limit).await?;
    let value: Vec<Value> = records.iter().map(record).collect();
    let mut lines: Vec<String> = records.iter().flat_map(lines_of).collect();
    if lines.is_empty() {
        lines.push("nothing is scheduled".to_owned());
    }
    output.print(&value, &lines)?;
    Ok(End::Done)
}

fn record(of: &ScheduledRecord) -> Value {
    json!({
        "id": of.id, "exchange": of.exchange, "routing_key": of.routing_key,
        "ordering_key": of.ordering_key, "created_at": of.created_at, "due_at": of.available_at,
    })
}

fn lines_of(of: &ScheduledRecord) -> [String; 2] {
    let due = of.available_at.format("%F %T");
    let target = format!("     to {}/{}", of.exchange, of.routing_key);
    [fit(&format!("{due}  {}", of.id), COLUMNS), fit(&target, COLUMNS)]
}

/// Each in a transaction of its own, so that one that is too late holds up no other.
async fn cancel(
    outbox: &Outbox,
    ids: &[String],
    yes: bool,
    output: &Output,
) -> Result<End, BoxError> {
    if ids.len() > 1 && !ask(&format!("Cancel {} records?", ids.len()), yes)? {
        return Ok(End::Done);
    }
    let (mut cancelled, mut too_late) = (Vec::new(), Vec::new());
    for id in ids {
        let is_cancelled = outbox.cancel(id).await?;
        if is_cancelled { cancelled.push(id) } else { too_late.push(id) }
    }
    let mut lines = vec![format!("cancelled {}", cancelled.len())];
    lines.extend(too_late.iter().map(|id| format!("not scheduled any more: {id}")));
    output.print(&json!({ "cancelled": cancelled, "not_scheduled": too_late }), &lines)?;
    Ok(if too_late.is_empty() { End::Done } else { End::Found })
}
