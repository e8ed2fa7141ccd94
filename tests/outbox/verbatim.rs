//! The bytes that go in are the bytes that come out, on every database and broker.

use std::sync::Arc;

use acemq::{OutboxRecord, OutboxRelay};

use crate::{
    support::{Fixture, Inbox},
    world::{World, on_databases},
};

on_databases!(payloads_come_out_byte_for_byte_with_their_content_type);

/// Signed text that a parser and a printer would change, and bytes that are no text.
fn payloads() -> Vec<(Vec<u8>, &'static str)> {
    let json: [&str; 8] = [
        r#"{"b":1,"a":2,"b":3}"#,
        r#"{"n":123456789012345678901234567890,"f":1.0,"e":1E+2,"z":-0}"#,
        "{ \"spaced\" :\t[1 ,2]\r\n}",
        "{\"escaped\":\"\\u0041\\/\\u00e4 \u{e4} \u{1F600}\"}",
        "\u{feff}{}",
        "[1,2,",
        "null",
        "",
    ];
    let mut random = fastrand::Rng::with_seed(26);
    let noise = (0..50).map(|length| {
        let bytes = (0..length * 7).map(|_| random.u8(..)).collect();
        (bytes, "application/octet-stream")
    });
    let mut all: Vec<(Vec<u8>, &str)> =
        json.iter().map(|text| (text.as_bytes().to_vec(), "application/json")).collect();
    all.push((b"\0".to_vec(), "text/plain; charset=utf-16"));
    all.push((b"a\0b\xff\xfe\x80".to_vec(), "x/y"));
    all.push(((0..=255).collect(), "application/octet-stream"));
    all.extend(noise);
    all
}

async fn payloads_come_out_byte_for_byte_with_their_content_type<W: World>(
    fx: Arc<Fixture>,
    world: W,
) {
    let queue = fx.queue("orders").await;
    let mut inbox = Inbox::of(&fx.mq, &queue).await;
    let payloads = payloads();
    // One key, so that they come in order.
    let records = payloads.iter().map(|(bytes, content_type)| {
        OutboxRecord::bytes("", queue.as_str(), *content_type, bytes.clone()).ordering_key("k")
    });
    let records: Vec<OutboxRecord> = records.collect();
    world.add(records.clone()).await;
    let report = OutboxRelay::new(&fx.mq, world.outbox()).drain(0).await.unwrap();
    assert_eq!(report.published(), payloads.len() as u64, "{report:?}");
    for (record, (bytes, content_type)) in records.iter().zip(&payloads) {
        let message = inbox.next().await;
        assert_eq!(message.payload().as_ref(), bytes.as_slice());
        assert_eq!(message.id(), record.id());
        assert_eq!(message.content_type(), Some(*content_type));
    }
    inbox.consumer.close().await;
}
