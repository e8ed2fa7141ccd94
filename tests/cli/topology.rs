//! `acemq topology`.

use std::path::PathBuf;

use acemq::{Overflow, Queue, Topology};
use serde_json::{Value, json};

use crate::{
    Run, acemq,
    support::{Broker, Fixture, amqp_url, management_url, run},
};

/// A file that is removed with the test.
struct File(PathBuf);

impl File {
    fn of(value: &Value) -> Self {
        let name = format!("acemq-{}.json", uuid::Uuid::new_v4().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn topology(verb: &'static str, file: &File, options: &'static [&'static str]) -> Run {
    let path = file.0.to_str().unwrap().to_owned();
    let running = tokio::task::spawn_blocking(move || {
        let (broker, api) = (amqp_url(), management_url());
        let common = ["--broker", &broker, "--management", &api, "topology", verb, &path];
        acemq(&[&common[..], options].concat())
    });
    running.await.unwrap()
}

fn wanted(fx: &Fixture) -> (String, Value) {
    let (queue, exchange) = (fx.name("queue"), fx.name("exchange"));
    let file = json!({
        "exchanges": [{ "name": exchange, "kind": "topic", "auto_delete": true }],
        "queues": [{ "name": queue, "kind": "classic", "arguments": { "x-max-length": 5 } }],
        "bindings": [{ "from": exchange, "queue": queue, "routing_key": "order.*" }],
    });
    (queue, file)
}

fn findings(plan: &Value) -> Vec<&str> {
    let objects = plan["objects"].as_array().unwrap();
    objects.iter().map(|of| of["finding"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_planned_applied_and_validated() {
    run(Broker::RabbitMq, |fx| async move {
        let (queue, wanted) = wanted(&fx);
        let file = File::of(&wanted);
        let plan = topology("plan", &file, &["--json"]).await.ends_with(0).json();
        assert_eq!(findings(&plan), ["create"; 3]);
        topology("validate", &file, &[]).await.ends_with(3);
        assert!(topology("apply", &file, &[]).await.ends_with(1).told().contains("--yes"));
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), None);
        topology("apply", &file, &["--yes"]).await.ends_with(0);
        let plan = topology("validate", &file, &["--json"]).await.ends_with(0).json();
        assert_eq!(findings(&plan), ["present"; 3]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drift_is_found_and_nothing_is_declared() {
    run(Broker::RabbitMq, |fx| async move {
        let (queue, wanted) = wanted(&fx);
        let other = Queue::classic(queue.as_str()).max_length(6, Overflow::DropHead);
        fx.mq.declare(&Topology::new().queue(other)).await.unwrap();
        let file = File::of(&wanted);
        let run = topology("apply", &file, &["--yes"]).await.ends_with(3);
        assert!(run.told().contains("x-max-length"), "{}", run.told());
        let plan = topology("validate", &file, &["--json"]).await.ends_with(3).json();
        assert_eq!(findings(&plan), ["create", "drift", "create"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_read_is_told_by_what_is_wrong() {
    for (wrong, word) in [
        (json!({ "queus": [] }), "queus"),
        (json!({ "exchanges": [{ "name": "e", "kind": "round" }] }), "round"),
        (json!({ "bindings": [{ "from": "e" }] }), "`queue` or `exchange`"),
        (json!({ "queues": [{ "name": "q", "arguments": { "x": 1.5 } }] }), "`x`"),
    ] {
        let told = topology("plan", &File::of(&wrong), &[]).await.ends_with(1).told();
        assert!(told.contains(word), "{told}");
    }
}
