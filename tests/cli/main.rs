//! The program `acemq`, run as its users run it.

#[path = "../support/mod.rs"]
mod support;

mod dead_letters;
mod doctor;
mod outbox;
mod sagas;
mod topology;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A run of the program, without a terminal, and with nothing from this test's environment.
pub fn acemq(arguments: &[&str]) -> Run {
    let output = command(arguments).output().unwrap();
    Run { arguments: arguments.join(" "), output }
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_acemq"));
    for variable in ["ACEMQ_URL", "DATABASE_URL", "ACEMQ_MANAGEMENT_URL"] {
        command.env_remove(variable);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// How a run ended.
pub struct Run {
    arguments: String,
    output: Output,
}

impl Run {
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.output.status.code(), Some(code), "{}", self.told());
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.output.stdout).unwrap_or_else(|_| panic!("{}", self.told()))
    }

    pub fn lines(&self) -> Vec<String> {
        String::from_utf8(self.output.stdout.clone()).unwrap().lines().map(str::to_owned).collect()
    }

    /// Everything that was said, for people.
    pub fn told(&self) -> String {
        let out = String::from_utf8_lossy(&self.output.stdout);
        let errors = String::from_utf8_lossy(&self.output.stderr);
        format!("acemq {}\n{out}{errors}", self.arguments)
    }
}

#[test]
fn wrong_use_is_told_apart_from_failure() {
    for arguments in [
        &["nonsense"][..],
        &["outbox", "purge"],
        &["outbox", "purge", "--older-than", "soon"],
        &["outbox", "requeue"],
        &["dead-letters", "show", "q.dlq", "--header", "novalue"],
    ] {
        acemq(arguments).ends_with(2);
    }
    for arguments in [&["outbox", "status"][..], &["dead-letters", "show", "q.dlq"], &["doctor"]] {
        let run = acemq(arguments).ends_with(1);
        assert!(run.told().contains("--"), "names the option: {}", run.told());
    }
}

#[test]
fn every_command_has_help_within_a_terminal() {
    let commands: [&[&str]; 10] = [
        &[],
        &["outbox"],
        &["outbox", "status"],
        &["outbox", "requeue"],
        &["dead-letters"],
        &["dead-letters", "show"],
        &["dead-letters", "replay"],
        &["topology", "plan"],
        &["topology", "validate"],
        &["doctor"],
    ];
    for of in commands {
        let arguments = [of, &["--help"]].concat();
        let output = command(&arguments).env("COLUMNS", "80").output().unwrap();
        let run = Run { arguments: arguments.join(" "), output }.ends_with(0);
        assert!(run.lines().len() > 5, "{}", run.told());
    }
}

#[test]
fn no_password_is_ever_told() {
    let broker = "amqp://guest:s3cret@127.0.0.1:1/%2f";
    let database = "postgres://postgres:s3cret@127.0.0.1:1/test";
    let commands: [&[&str]; 6] = [
        &["--broker", broker, "dead-letters", "show", "q.dlq"],
        &["--database", database, "outbox", "status"],
        &["--database", "oracle://scott:s3cret@localhost", "outbox", "status"],
        &["--broker", broker, "--database", database, "doctor"],
        &["--management", "http://guest:s3cret@127.0.0.1:1", "doctor"],
        &["--help"],
    ];
    std::thread::scope(|threads| {
        for arguments in commands {
            threads.spawn(move || {
                let told = command(arguments).env("ACEMQ_URL", broker).output().unwrap();
                let told = format!("{told:?}");
                assert!(!told.contains("s3cret"), "{arguments:?}: {told}");
            });
        }
    });
}
