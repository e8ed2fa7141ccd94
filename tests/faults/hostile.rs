//! What a foreign sender may write, whatever this library would never write itself.

use acemq::{HandlerError, MemoryIdempotencyStore, Message};
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::BasicPublishOptions,
    types::{AMQPValue, FieldTable},
};

use crate::support::{Broker, amqp_url, eventually, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_no_store_and_no_property_can_hold_stop_no_consumer() {
    run(Broker::RabbitMq, |fx| async move {
        let queue = fx.queue("orders").await;
        let consumer = fx
            .mq
            .consumer::<u32>(queue.as_str())
            .idempotent(MemoryIdempotencyStore::new())
            .start(|message: Message<u32>| async move {
                match message.payload() {
                    0 => Ok(()),
                    _ => Err(HandlerError::reject("no")),
                }
            })
            .await
            .unwrap();
        let connection =
            Connection::connect(&amqp_url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        for id in ["x".repeat(300), "a\0b".to_owned(), "日本".repeat(200)] {
            let mut headers = FieldTable::default();
            headers.insert("x-acemq-id".into(), AMQPValue::LongString(id.into()));
            let properties = BasicProperties::default().with_headers(headers);
            for body in ["0", "1"] {
                let (options, key) = (BasicPublishOptions::default(), queue.as_str().into());
                channel
                    .basic_publish("".into(), key, options, body.as_bytes(), properties.clone())
                    .await
                    .unwrap();
            }
        }
        fx.until_length(&format!("{queue}.dlq"), 3).await;
        eventually("the others to be handled", async || consumer.stats().acked == 3).await;
        assert_eq!(consumer.stats().set_aside_failed, 0);
        let replayed = fx.mq.replay(format!("{queue}.dlq")).run().await.unwrap();
        assert_eq!(replayed.moved(), 3);
        fx.until_length(&format!("{queue}.dlq"), 3).await;
        connection.close(200, "OK".into()).await.unwrap();
    })
    .await;
}
