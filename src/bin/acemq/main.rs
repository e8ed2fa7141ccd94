//! `acemq`: looks after outboxes, dead letters, sagas and topology from a terminal or a script.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong use, 3 something was found that is not as it should be.
#![warn(clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]

mod broker;
mod database;
mod dead_letters;
mod doctor;
mod filter;
mod outbox;
mod output;
mod sagas;
mod schedules;
mod topology;

use std::process::ExitCode;

use acemq::BoxError;
use clap::{Args, Parser, Subcommand};

use output::Output;

/// Looks after what services on acemq leave behind: outbox rows, dead letters, sagas, topology.
///
/// Exit codes: 0 done, 1 failed, 2 wrong use, 3 found something that is not as it should be.
#[derive(Parser)]
#[command(name = "acemq", version, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// What every command understands.
#[derive(Args)]
#[command(next_help_heading = "Everywhere")]
struct Common {
    /// The broker
    #[arg(long, global = true, value_name = "URL", env = "ACEMQ_URL", hide_env_values = true)]
    broker: Option<String>,
    /// The database of the outbox
    #[arg(long, global = true, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database: Option<String>,
    /// The broker's management API, for what AMQP cannot show
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "ACEMQ_MANAGEMENT_URL",
        hide_env_values = true
    )]
    management: Option<String>,
    /// The virtual host that the management API is asked about
    #[arg(long, global = true, value_name = "NAME", default_value = "/")]
    virtual_host: String,
    /// The prefix of the tables
    #[arg(long, global = true, value_name = "PREFIX", default_value = "acemq_")]
    table_prefix: String,
    /// Print JSON, for scripts
    #[arg(long, global = true)]
    json: bool,
    /// Do not ask before changing something
    #[arg(long, global = true)]
    yes: bool,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, parsed once")]
enum Command {
    /// What waits, what was retired, and what may go
    #[command(subcommand)]
    Outbox(outbox::Command),
    /// Messages that were given up: list, show, replay
    #[command(subcommand)]
    DeadLetters(dead_letters::Command),
    /// Delayed records of an outbox: list, cancel
    #[command(subcommand)]
    Schedules(schedules::Command),
    /// Runs of durable sagas that somebody has to look at
    #[command(subcommand)]
    Sagas(sagas::Command),
    /// Compares a topology file with the broker
    #[command(subcommand)]
    Topology(topology::Command),
    /// Checks broker and database, and says what is wrong and what to do
    Doctor(doctor::Options),
}

/// How a command ended, where it did not fail.
enum End {
    Done,
    /// Something is not as it should be.
    Found,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { command, common } = Cli::parse();
    let output = Output::new(common.json);
    let ended = match command {
        Command::Outbox(command) => outbox::run(command, &common, &output).await,
        Command::DeadLetters(command) => dead_letters::run(command, &common, &output).await,
        Command::Schedules(command) => schedules::run(command, &common, &output).await,
        Command::Sagas(command) => sagas::run(command, &common, &output).await,
        Command::Topology(command) => topology::run(command, &common, &output).await,
        Command::Doctor(options) => doctor::run(&options, &common, &output).await,
    };
    match ended {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Found) => ExitCode::from(3),
        Err(error) if output::is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("acemq: {}", output::with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An option that a command needs and that was not given.
fn needed(option: &str, variable: &str) -> BoxError {
    format!("this needs --{option}, or {variable} in the environment").into()
}
