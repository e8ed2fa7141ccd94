//! A step whose work, whose note of the message and whose next message commit together.

use acemq::{OutboxRecord, OutboxRelay, SqliteIdempotencyStore, SqliteOutbox, Work};
use sqlx::{Sqlite, sqlite::SqlitePoolOptions};

use crate::{STEPS, built, name, next, support::eventually, three};

on_both_brokers! {
    async fn a_step_can_send_on_through_an_outbox_in_its_own_transaction(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let pipeline = built(builder.only(["double", "tell"])).await;
        let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
        sqlx::query("CREATE TABLE done (n integer)").execute(&pool).await.unwrap();
        let outbox = SqliteOutbox::new(pool.clone());
        outbox.migrate().await.unwrap();
        let inbox = SqliteIdempotencyStore::new(pool.clone());
        inbox.migrate().await.unwrap();
        let (hops, onward) = (pipeline.clone(), outbox.clone());
        let consumer = fx
            .mq
            .consumer::<u64>(pipeline.queue_for("add").unwrap())
            .transactional(inbox)
            .start(move |mut work: Work<u64, Sqlite>| {
                let (hops, outbox) = (hops.clone(), onward.clone());
                async move {
                    let sum = *work.payload() + 1;
                    let hop = hops.next_hop("add", work.envelope(), &sum)?.expect("not the last");
                    sqlx::query("INSERT INTO done VALUES (1)").execute(&mut **work.tx()).await?;
                    let record = OutboxRecord::bytes(
                        hop.exchange(),
                        hop.routing_key(),
                        hop.content_type(),
                        hop.body().clone(),
                    );
                    outbox.add(work.tx(), record.envelope(hop.envelope().clone())).await?;
                    Ok(work.commit().await?)
                }
            })
            .await
            .unwrap();
        let relay = OutboxRelay::new(&fx.mq, outbox).start();
        let run = pipeline.send(&10).await.unwrap();
        let (result, message) = next(&mut told).await;
        assert_eq!(result, 21);
        assert_eq!(message.envelope().route().unwrap().run_id(), run);
        eventually("the end", async || pipeline.completed() == 1).await;
        let done: i64 = sqlx::query_scalar("SELECT count(*) FROM done").fetch_one(&pool).await.unwrap();
        assert_eq!(done, 1);
        assert!(pipeline.next_hop("tell", message.envelope(), &1).unwrap().is_none());
        assert!(pipeline.next_hop("nowhere", message.envelope(), &1).is_err());
        relay.close().await;
        consumer.close().await;
    }
}
