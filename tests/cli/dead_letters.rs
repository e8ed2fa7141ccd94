//! `acemq dead-letters`.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use acemq::{AceMq, Envelope, Queue, Topology};

use crate::{
    Run, acemq, command,
    support::{Broker, Fixture, amqp_url, management_url, run},
};

/// A queue with dead letters of two types and long errors.
async fn given_up(fx: &Fixture, messages: u32) -> String {
    let queue = fx.queue("orders").await;
    let dead = fx.mq.publisher::<u32>("", format!("{queue}.dlq"));
    for number in 0..messages {
        let kind = if number % 2 == 0 { "order.placed" } else { "order.paid" };
        let envelope = Envelope::of(kind)
            .header("x-tenant", if number < 2 { "acme" } else { "other" })
            .with_error(format!("timeout {number}: {}", "and so on, ".repeat(30)));
        dead.send_with(&number, envelope).await.unwrap();
    }
    queue
}

/// The program at the fixture's broker, off the threads that its futures run on.
async fn on_broker(arguments: &[&str]) -> Run {
    let url = amqp_url();
    let arguments: Vec<String> =
        ["--broker", &url].iter().chain(arguments).map(ToString::to_string).collect();
    let running = tokio::task::spawn_blocking(move || {
        acemq(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    });
    running.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_listed_shown_and_replayed() {
    run(Broker::RabbitMq, |fx| async move {
        let queue = given_up(&fx, 5).await;
        let dead = format!("{queue}.dlq");

        let listed =
            on_broker(&["dead-letters", "list", &queue, "--json"]).await.ends_with(0).json();
        assert_eq!(
            (&listed[0]["queue"], &listed[0]["messages"]),
            (&dead.clone().into(), &5.into())
        );
        let shown = on_broker(&["dead-letters", "show", &dead]).await.ends_with(0).lines();
        assert_eq!(shown.len(), 10);
        assert!(shown.iter().all(|line| line.chars().count() <= 80), "{shown:#?}");
        let paid = ["dead-letters", "show", &dead, "--type", "order.paid", "--body", "--json"];
        let paid = on_broker(&paid).await.ends_with(0).json();
        let bodies: Vec<_> = paid.as_array().unwrap().iter().map(|of| of["body"].clone()).collect();
        assert_eq!(bodies, ["1", "3"]);

        let filter = ["--header", "x-tenant=acme", "--error", "timeout"];
        let replay = [&["dead-letters", "replay", &dead][..], &filter].concat();
        let dry =
            on_broker(&[&replay[..], &["--dry-run", "--json"]].concat()).await.ends_with(0).json();
        assert_eq!((&dry["moved"], &dry["skipped"]), (&2.into(), &3.into()));
        let refused = on_broker(&replay).await.ends_with(1);
        assert!(refused.told().contains("--yes"), "{}", refused.told());
        fx.until_length(&dead, 5).await;

        let moved =
            on_broker(&[&replay[..], &["--yes", "--json"]].concat()).await.ends_with(0).json();
        assert_eq!((&moved["moved"], &moved["skipped"]), (&2.into(), &3.into()));
        fx.until_length(&queue, 2).await;
        fx.until_length(&dead, 3).await;

        let other = fx.queue("other").await;
        let elsewhere =
            ["dead-letters", "replay", &dead, "--to-key", &other, "--limit", "1", "--yes"];
        on_broker(&elsewhere).await.ends_with(0);
        fx.until_length(&other, 1).await;
        fx.until_length(&dead, 2).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_management_api_finds_every_dead_letter_queue() {
    run(Broker::RabbitMq, |fx| async move {
        let queue = given_up(&fx, 1).await;
        let api = management_url();
        let list = ["--management", api.as_str(), "dead-letters", "list", "--json"];
        let listed = on_broker(&list).await.ends_with(0).json();
        let dead = format!("{queue}.dlq");
        assert!(listed.as_array().unwrap().iter().any(|of| of["queue"] == *dead), "{listed}");
        on_broker(&["dead-letters", "list"]).await.ends_with(1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_replayed_is_told_and_stays() {
    run(Broker::RabbitMq, |fx| async move {
        let queue = given_up(&fx, 1).await;
        let dead = format!("{queue}.dlq");
        let nowhere = ["dead-letters", "replay", &dead, "--to-key", "t.no.such.queue", "--yes"];
        let told = on_broker(&nowhere).await.ends_with(1).told();
        assert!(told.contains("t.no.such.queue"), "{told}");
        fx.until_length(&dead, 1).await;
        let missing = ["dead-letters", "replay", "t.no.such.dlq", "--yes"];
        assert!(on_broker(&missing).await.ends_with(1).told().contains("t.no.such.dlq"));
    })
    .await;
}

/// Reads the first line of what a program prints, and goes away.
fn read_one_line(arguments: &[&str]) -> (String, std::process::ExitStatus) {
    let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (line, child.wait().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_is_no_failure() {
    run(Broker::RabbitMq, |fx| async move {
        let dead = format!("{}.dlq", given_up(&fx, 300).await);
        let reading = tokio::task::spawn_blocking(move || {
            read_one_line(&[
                "--broker",
                &amqp_url(),
                "dead-letters",
                "show",
                &dead,
                "--limit",
                "300",
                "--json",
                "--body",
            ])
        });
        let (line, status) = reading.await.unwrap();
        assert_eq!((line.as_str(), status.code()), ("[\n", Some(0)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_ends_a_replay_between_two_messages() {
    run(Broker::RabbitMq, |fx| async move {
        let queue = given_up(&fx, 20).await;
        let dead = format!("{queue}.dlq");
        let replay =
            ["--broker", &amqp_url(), "dead-letters", "replay", &dead, "--rate", "5", "--yes"];
        let mut child =
            command(&replay).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        crate::support::eventually("the first messages", async || {
            fx.mq.queue_length(&queue).await.unwrap() >= Some(2)
        })
        .await;
        let pid = child.id().to_string();
        assert!(
            std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success()
        );
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
        assert_eq!(status.code(), Some(3));
        let moved = fx.mq.queue_length(&queue).await.unwrap().unwrap();
        assert!(moved < 20, "{moved}");
        fx.until_length(&dead, 20 - moved).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_bodies_do_not_reach_the_terminal() {
    run(Broker::RabbitMq, |fx| async move {
        let queue = fx.name("orders");
        let dead = format!("{queue}.dlq");
        fx.mq.declare(&Topology::new().queue(Queue::classic(dead.as_str()))).await.unwrap();
        send_text(&fx.mq, &dead, "\u{1b}[2J\u{7}red\r\nalert").await;
        let told = on_broker(&["dead-letters", "show", &dead, "--body"]).await.ends_with(0).told();
        assert!(!told.contains(['\u{1b}', '\u{7}', '\r']), "{told:?}");
    })
    .await;
}

async fn send_text(mq: &AceMq, queue: &str, text: &str) {
    let envelope = Envelope::of(text.to_owned()).with_error(text);
    mq.publisher::<String>("", queue).send_with(&text.to_owned(), envelope).await.unwrap();
}
