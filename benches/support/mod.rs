//! What the benches share: the broker, the message, the alternating rounds and the ratio.

#![allow(dead_code)] // each bench uses its own part

use std::time::{Duration, Instant};

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};

/// The bytes of a message's body.
pub const BODY: usize = 256;

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

    /// Prints the medians and, last, the line that scripts read.
    pub fn finish(self) {
        let ratios = self.raw.iter().zip(&self.ours).map(|(raw, ours)| ours / raw).collect();
        println!("{:>6} {:>14.0} {:>14.0}", "median", median(self.raw), median(self.ours));
        println!("{} ratio={:.3}", self.name, median(ratios));
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
