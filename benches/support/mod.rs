//! What the benches share: the broker, the message, the alternating rounds and the ratio.

#![allow(dead_code)] // each bench uses its own part

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};

/// The bytes of a message's body.
pub const BODY: usize = 256;

/// The bytes of a message's body, where the bench can be run with others.
pub fn body_size() -> usize {
    setting("ACEMQ_BENCH_BODY", BODY)
}

/// Unconfirmed publishes in flight.
pub const WINDOW: usize = 1000;

pub fn url() -> String {
    std::env::var("ACEMQ_URL").unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".into())
}

/// A number from the environment, for longer or shorter runs.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A raw connection and a channel in confirm mode.
pub async fn raw_channel() -> (Connection, Channel) {
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    (connection, channel)
}

/// Declares an empty quorum queue of this name.
pub async fn fresh_quorum_queue(channel: &Channel, name: &str) {
    channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
}

pub async fn delete_queue(channel: &Channel, name: &str) {
    channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
}

/// The properties that a hand-written publisher of the same envelope sets.
pub fn raw_properties(id: &str, key: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, text) in [
        ("x-acemq-id", id),
        ("x-acemq-type", key),
        ("x-acemq-correlation", id),
        ("x-acemq-origin", "bench@host"),
    ] {
        headers.insert(name.into(), AMQPValue::LongString(text.into()));
    }
    headers.insert("x-acemq-version".into(), AMQPValue::LongInt(1));
    headers.insert("x-acemq-attempt".into(), AMQPValue::LongInt(1));
    let now = chrono::Utc::now().timestamp_millis();
    headers.insert("x-acemq-first-seen".into(), AMQPValue::LongLongInt(now));
    BasicProperties::default()
        .with_message_id(id.into())
        .with_content_type("application/octet-stream".into())
        .with_delivery_mode(2)
        .with_headers(headers)
}

/// Publishes to a queue as a hand-written pipelined publisher would: persistent, confirmed and
/// mandatory, with the same envelope.
pub async fn publish_raw(channel: &Channel, queue: &str, bodies: &[Bytes]) {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let mut window = VecDeque::with_capacity(WINDOW);
    for body in bodies {
        if window.len() == WINDOW {
            confirmed(&mut window).await;
        }
        let id = uuid::Uuid::new_v4().to_string();
        let properties = raw_properties(&id, queue);
        let confirm =
            channel.basic_publish("".into(), queue.into(), options, body, properties).await;
        window.push_back(confirm.unwrap());
    }
    while !window.is_empty() {
        confirmed(&mut window).await;
    }
}

async fn confirmed(window: &mut VecDeque<lapin::PublisherConfirm>) {
    if let Some(confirm) = window.pop_front() {
        assert!(matches!(confirm.await, Ok(Confirmation::Ack(None))));
    }
}

/// The rates of both sides, round by round.
pub struct Rounds {
    name: &'static str,
    raw: Vec<f64>,
    ours: Vec<f64>,
}

impl Rounds {
    pub fn new(name: &'static str) -> Self {
        println!("{:>6} {:>14} {:>14} {:>8}", "round", "raw lapin /s", "acemq /s", "ratio");
        Self { name, raw: Vec::new(), ours: Vec::new() }
    }

    /// Notes one round of both, each over the same number of messages.
    pub fn note(&mut self, messages: usize, raw: Duration, ours: Duration) {
        #[allow(clippy::cast_precision_loss)] // message counts are far below 2^52
        let rate = |time: Duration| messages as f64 / time.as_secs_f64();
        let (raw, ours) = (rate(raw), rate(ours));
        let round = self.raw.len() + 1;
        println!("{round:>6} {raw:>14.0} {ours:>14.0} {:>8.3}", ours / raw);
        self.raw.push(raw);
        self.ours.push(ours);
    }

    /// Prints the medians and the line that scripts read, which it also returns.
    pub fn finish(self) -> String {
        let ratios = self.raw.iter().zip(&self.ours).map(|(raw, ours)| ours / raw).collect();
        println!("{:>6} {:>14.0} {:>14.0}", "median", median(self.raw), median(self.ours));
        let line = format!("{} ratio={:.3}", self.name, median(ratios));
        println!("{line}");
        line
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub async fn timed<T>(work: impl Future<Output = T>) -> Duration {
    let started = Instant::now();
    work.await;
    started.elapsed()
}
