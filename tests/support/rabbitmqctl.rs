//! RabbitMQ's own tool, for what only the broker can do to a client.

use std::{
    process::{Command, Output},
    time::Duration,
};

use super::{eventually, soon};

/// Runs the tool and returns what it printed. A missing tool and a failure end the test.
pub async fn rabbitmqctl(arguments: &[&str]) -> String {
    let output = run(arguments).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rabbitmqctl {arguments:?} failed: {text}{complaint}");
    text
}

/// How long a broker under load may take to stop.
const STOP: Duration = Duration::from_secs(180);

/// Stops the broker's application and starts it again after a while.
pub async fn restart(down: Duration) {
    // Started again whatever becomes of the test.
    let start = Restore::by(&["start_app"]);
    let mut stop = tokio::process::Command::from(command(&["stop_app"]));
    let stopped = tokio::time::timeout(STOP, stop.kill_on_drop(true).status()).await;
    assert!(stopped.expect("the broker to stop").unwrap().success(), "stop_app");
    tokio::time::sleep(down).await;
    tokio::task::spawn_blocking(|| drop(start)).await.unwrap();
    rabbitmqctl(&["await_startup"]).await;
}

async fn run(arguments: &[&str]) -> Output {
    let running = tokio::process::Command::from(command(arguments)).output();
    soon("rabbitmqctl", running).await.unwrap_or_else(|error| {
        panic!(
            "this test needs RabbitMQ's own tool, and `{}` does not start ({error}); \
             set ACEMQ_TEST_RABBITMQCTL to a command that does",
            tool()
        )
    })
}

fn tool() -> String {
    std::env::var("ACEMQ_TEST_RABBITMQCTL").unwrap_or_else(|_| "rabbitmqctl".to_owned())
}

/// The variable may hold a whole command, for instance one that enters a container.
fn command(arguments: &[&str]) -> Command {
    let tool = tool();
    let mut words = tool.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("rabbitmqctl"));
    command.args(words).arg("--quiet").args(arguments);
    command
}

/// Runs the tool when dropped, whatever became of the test.
pub struct Restore(Vec<String>);

impl Restore {
    pub fn by(arguments: &[&str]) -> Self {
        Self(arguments.iter().map(|&argument| argument.to_owned()).collect())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let arguments: Vec<&str> = self.0.iter().map(String::as_str).collect();
        match command(&arguments).output() {
            Ok(output) if output.status.success() => {}
            failed => eprintln!("the broker is left changed, {arguments:?} failed: {failed:?}"),
        }
    }
}

/// Has the broker close the connections whose name contains `name`, as an operator would.
pub async fn close_connections(name: &str, reason: &str) {
    let mut closed = Vec::new();
    eventually(&format!("the broker to know a connection `{name}`"), async || {
        !pids(name).await.is_empty()
    })
    .await;
    for pid in pids(name).await {
        // One that ends by itself meanwhile is no failure.
        let output = run(&["close_connection", &pid, reason]).await;
        closed.push(output.status.success());
    }
    assert!(closed.contains(&true), "no connection `{name}` could be closed");
}

async fn pids(name: &str) -> Vec<String> {
    let listed = rabbitmqctl(&["list_connections", "pid", "client_properties"]).await;
    let of_name = listed.lines().filter(|line| line.contains(name));
    of_name.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}
