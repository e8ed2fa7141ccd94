//! `acemq dead-letters`.

use std::time::Duration;

use acemq::{
    AceMq, BoxError,
    consume::{ReplayCandidate, ReplayEnd, ReplayReport},
};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::{
    Common, End, broker,
    filter::Filter,
    output::{COLUMNS, Output, age, ask, fit},
};

#[derive(Subcommand)]
pub enum Command {
    /// How many messages wait in dead-letter and parked queues
    List {
        /// The queues whose .dlq and .parked are looked at. Without any: all, by the management
        /// API
        queues: Vec<String>,
    },
    /// The messages of a queue, with their errors; nothing is moved
    Show {
        /// The queue, with its .dlq or .parked
        queue: String,
        #[command(flatten)]
        filter: Filter,
        /// At most this many
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// Print the bodies too
        #[arg(long)]
        body: bool,
    },
    /// Moves messages back to work
    Replay(Replay),
}

#[derive(Args)]
pub struct Replay {
    /// The queue, with its .dlq or .parked
    queue: String,
    #[command(flatten)]
    filter: Filter,
    /// Move at most this many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Move at most this many a second
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Stop after this time
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    within: Option<Duration>,
    /// Count what would be moved, and move nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep attempts and error, instead of beginning anew
    #[arg(long)]
    keep_attempts: bool,
    /// Move to this exchange instead; empty is the default exchange
    #[arg(long, value_name = "EXCHANGE", requires = "to_key")]
    to_exchange: Option<String>,
    /// Move under this routing key instead, which for the default exchange is a queue
    #[arg(long, value_name = "KEY")]
    to_key: Option<String>,
}

pub async fn run(command: Command, common: &Common, output: &Output) -> Result<End, BoxError> {
    let mq = broker::connect(common).await?;
    let ended = match command {
        Command::List { queues } => list(&mq, queues, common, output).await,
        Command::Show { queue, filter, limit, body } => {
            show(filter.of(&mq, &queue), limit, body, output).await
        }
        Command::Replay(options) => replay(&mq, options, common.yes, output).await,
    };
    mq.close().await;
    ended
}

async fn list(
    mq: &AceMq,
    queues: Vec<String>,
    common: &Common,
    output: &Output,
) -> Result<End, BoxError> {
    let mut found = Vec::new();
    if queues.is_empty() {
        let api = broker::management(common)?;
        let api = api.ok_or("name the queues, or give --management to find them all")?;
        for queue in api.queues().await? {
            if [".dlq", ".parked"].iter().any(|suffix| queue.name.ends_with(suffix)) {
                found.push((queue.name, queue.messages));
            }
        }
    }
    for name in queues.iter().flat_map(|of| [format!("{of}.dlq"), format!("{of}.parked")]) {
        if let Some(messages) = mq.queue_length(&name).await? {
            found.push((name, messages));
        }
    }
    let value: Vec<Value> = found
        .iter()
        .map(|(queue, messages)| json!({ "queue": queue, "messages": messages }))
        .collect();
    let mut lines: Vec<String> = found
        .iter()
        .filter(|(_, messages)| *messages > 0)
        .map(|(queue, messages)| format!("{messages:>9}  {}", fit(queue, COLUMNS - 11)))
        .collect();
    if lines.is_empty() {
        lines.push(format!("{} queues, all empty", found.len()));
    }
    output.print(&value, &lines)?;
    Ok(End::Done)
}

async fn show(
    replay: acemq::consume::ReplayBuilder,
    limit: usize,
    body: bool,
    output: &Output,
) -> Result<End, BoxError> {
    let candidates = replay.preview(limit).await?;
    let value: Vec<Value> = candidates.iter().map(|of| message(of, body)).collect();
    let mut lines: Vec<String> = candidates.iter().flat_map(|of| lines_of(of, body)).collect();
    if lines.is_empty() {
        lines.push("no message".to_owned());
    }
    output.print(&value, &lines)?;
    Ok(End::Done)
}

/// What the message died of: a handler's error, or the broker's reason.
fn cause(of: &ReplayCandidate) -> String {
    match (of.error(), of.died()) {
        (Some(error), _) => error.to_owned(),
        (None, Some(death)) => format!("the broker: {} in {}", death.reason, death.queue),
        (None, None) => "no error is told".to_owned(),
    }
}

fn message(of: &ReplayCandidate, body: bool) -> Value {
    let mut value = json!({
        "id": of.id(), "type": of.message_type(), "attempt": of.attempt(),
        "age_seconds": of.age().as_secs_f64(), "cause": cause(of),
        "content_type": of.content_type(), "size": of.body().len(),
        "replays": of.replayed().map_or(0, |stamp| stamp.count()),
    });
    if body {
        value["body"] = String::from_utf8_lossy(of.body()).into();
    }
    value
}

fn lines_of(of: &ReplayCandidate, body: bool) -> Vec<String> {
    let head = format!("{}  {}  attempt {}", of.id(), of.message_type(), of.attempt());
    let mut lines = vec![
        fit(&head, COLUMNS),
        fit(&format!("  {} old, {} bytes: {}", age(of.age()), of.body().len(), cause(of)), COLUMNS),
    ];
    if body {
        // Bodies are for reading: control characters of a stranger's text must not reach the
        // terminal, and only the width is not cut.
        lines.push(format!("  {}", fit(&String::from_utf8_lossy(of.body()), usize::MAX)));
    }
    lines
}

async fn replay(mq: &AceMq, options: Replay, yes: bool, output: &Output) -> Result<End, BoxError> {
    let waiting = mq.queue_length(&options.queue).await?;
    let waiting = waiting.ok_or_else(|| format!("there is no queue `{}`", options.queue))?;
    let most = options.limit.map_or(waiting, |limit| limit.min(waiting));
    let question = format!("Replay up to {most} messages of {}?", options.queue);
    if !options.dry_run && !ask(&question, yes)? {
        return Ok(End::Done);
    }
    let bar =
        if output.shows_progress() { ProgressBar::new(waiting) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let report = moved(mq, options, bar.clone()).await?;
    bar.finish_and_clear();
    tell(&report, output)
}

/// Runs the replay. An interrupt closes the handle, which ends it between two messages.
async fn moved(mq: &AceMq, options: Replay, bar: ProgressBar) -> Result<ReplayReport, BoxError> {
    let mut replay = options.filter.of(mq, &options.queue).on_progress(move |progress| {
        bar.set_position(progress.moved + progress.skipped + progress.already_done);
        bar.set_message(format!("moved {}, left {}", progress.moved, progress.skipped));
    });
    if let Some(limit) = options.limit {
        replay = replay.limit(limit);
    }
    if let Some(rate) = options.rate {
        replay = replay.rate(rate);
    }
    if let Some(within) = options.within {
        replay = replay.within(within);
    }
    if let Some(key) = options.to_key {
        replay = replay.to(options.to_exchange.unwrap_or_default(), key);
    }
    if options.dry_run {
        replay = replay.dry_run();
    }
    if options.keep_attempts {
        replay = replay.keep_attempts();
    }
    let mut running = Box::pin(replay.run());
    tokio::select! {
        report = &mut running => Ok(report?),
        _ = tokio::signal::ctrl_c() => {
            let (_, report) = tokio::join!(mq.close(), running);
            Ok(report?)
        }
    }
}

fn tell(report: &ReplayReport, output: &Output) -> Result<End, BoxError> {
    let (ended, is_done) = match report.ended() {
        ReplayEnd::Drained => ("every message was looked at", true),
        ReplayEnd::Limit => ("the limit is reached", true),
        ReplayEnd::Deadline => ("the time is over", true),
        ReplayEnd::Failed(_) => ("it failed", false),
        _ => ("it was ended before its end", false),
    };
    let error = report.error().map(|error| crate::output::with_causes(error));
    let value = json!({
        "moved": report.moved(), "skipped": report.skipped(), "ended": ended, "error": error,
    });
    let mut lines = vec![format!("moved {}, left {}: {ended}", report.moved(), report.skipped())];
    lines.extend(error.clone());
    output.print(&value, &lines)?;
    if let Some(error) = error {
        return Err(error.into());
    }
    Ok(if is_done { End::Done } else { End::Found })
}
