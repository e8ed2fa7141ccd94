//! What must not change when a message is copied: retried, set aside, replayed.

use std::time::Duration;

use acemq::{BytesCodec, Envelope, HandlerError, HeaderValue, Headers, Message, RetryPolicy};
use bytes::Bytes;

use crate::{
    on_both_brokers,
    support::{AnyBody, Broker, Fixture, Inbox, soon},
};

on_both_brokers!(what_is_empty_or_odd_is_so_after_every_copy);

/// B125, B126: nothing, the empty, and times that no calendar has.
async fn what_is_empty_or_odd_is_so_after_every_copy(broker: Broker) {
    let fx = Fixture::on(broker).await;
    let queue = fx.queue("orders").await;
    let sent = Envelope::of("kind")
        .header("nothing", HeaderValue::Null)
        .header("empty text", "")
        .header("empty bytes", HeaderValue::Bytes(Bytes::new()))
        .header("empty list", HeaderValue::List(Vec::new()))
        .header("empty table", HeaderValue::Table(Headers::new()))
        .header("nested", HeaderValue::List(vec![HeaderValue::Null, "".into()]))
        .header("1970", HeaderValue::Timestamp(0))
        .header("in milliseconds", HeaderValue::Timestamp(1_700_000_000_000))
        .header("no year", HeaderValue::Timestamp(u64::MAX))
        .header("timestamp", "yesterday");

    let (seen, mut attempts) = tokio::sync::mpsc::unbounded_channel();
    let consumer = fx
        .mq
        .consumer_with::<Bytes>(queue.as_str(), AnyBody)
        .retry(RetryPolicy::fixed(2, Duration::from_millis(5)))
        .start(move |message: Message<Bytes>| {
            let noted = seen.send(message);
            async move {
                noted?;
                Err(HandlerError::retry("again"))
            }
        })
        .await
        .unwrap();
    let publisher = fx.mq.publisher_with::<Bytes>("", queue.as_str(), BytesCodec);
    publisher.send_with(&Bytes::new(), sent.clone()).await.unwrap();

    let first = soon("the first attempt", attempts.recv()).await.unwrap();
    let retried = soon("the retry", attempts.recv()).await.unwrap();
    let set_aside = format!("{queue}.dlq");
    fx.until_length(&set_aside, 1).await;
    consumer.close().await;
    let report = fx.mq.replay(set_aside).run().await.unwrap();
    assert_eq!(report.moved(), 1);
    let replayed = Inbox::of(&fx.mq, &queue).await.next().await;

    for (way, copy) in [("sent", first), ("retried", retried), ("replayed", replayed)] {
        assert!(copy.body().is_empty(), "{way}");
        assert_eq!(copy.id(), sent.id(), "{way}");
        for (name, value) in sent.headers().iter() {
            assert_eq!(copy.headers().get(name), Some(value), "{way}: {name}");
        }
    }
    fx.clean_up().await;
}
