//! Printing: for people or for scripts, and asking before a change.

use std::{
    error::Error,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use acemq::BoxError;
use serde::Serialize;

/// The columns that every line for people fits into.
pub const COLUMNS: usize = 80;

/// Where results go: plain lines, or one JSON value.
pub struct Output {
    json: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints a result: the value where JSON is wanted, else the lines.
    pub fn print(&self, value: &impl Serialize, lines: &[String]) -> Result<(), BoxError> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        Ok(out.flush()?)
    }

    /// Whether a progress bar has somebody who looks at it.
    pub fn shows_progress(&self) -> bool {
        !self.json && io::stderr().is_terminal()
    }
}

/// Asks whether to go on. Without a terminal the answer has to be given beforehand, by `--yes`.
pub fn ask(question: &str, yes: bool) -> Result<bool, BoxError> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(format!("{question} There is no terminal to ask: say --yes").into());
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Cuts text to a number of columns and marks the cut.
pub fn fit(text: &str, columns: usize) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if plain.chars().count() <= columns {
        return plain;
    }
    plain.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// An age in its two largest units.
pub fn age(of: Duration) -> String {
    let whole = Duration::from_secs(of.as_secs());
    let text = humantime::format_duration(whole).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

pub fn with_causes(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Whether the reader of the output went away, as `head` does: no failure.
pub fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}
