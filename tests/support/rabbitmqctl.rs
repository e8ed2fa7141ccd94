//! RabbitMQ's own tool, for what only the broker can do to a client.

use std::process::Output;

use tokio::process::Command;

use super::{eventually, soon};

/// Runs the tool and returns what it printed. A missing tool and a failure end the test.
pub async fn rabbitmqctl(arguments: &[&str]) -> String {
    let output = run(arguments).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rabbitmqctl {arguments:?} failed: {text}{complaint}");
    text
}

async fn run(arguments: &[&str]) -> Output {
    let tool = std::env::var("ACEMQ_TEST_RABBITMQCTL").unwrap_or_else(|_| "rabbitmqctl".to_owned());
    // The variable may hold a whole command, for instance one that enters a container.
    let mut words = tool.split_whitespace();
    let program = words.next().unwrap_or("rabbitmqctl");
    let running = Command::new(program).args(words).arg("--quiet").args(arguments).output();
    soon("rabbitmqctl", running).await.unwrap_or_else(|error| {
        panic!(
            "this test needs RabbitMQ's own tool, and `{tool}` does not start ({error}); \
             set ACEMQ_TEST_RABBITMQCTL to a command that does"
        )
    })
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
