//! The transactional consumer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use acemq::{
    Envelope, HandlerError, OutboxRecord, OutboxRelay, OutboxStore, RetryPolicy, Work, WorkResult,
    inbox::Receipt,
};
use tokio::sync::Mutex;

use crate::{
    bank::{Bank, Pg, on_every_database, postgres_url, unique},
    support::{Inbox, eventually, proxy::Proxy},
};

fn quickly(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, std::time::Duration::from_millis(5))
}

on_every_database! {
    async fn work_claim_and_outgoing_message_commit_together<B>(fx, bank) {
        let (queue, next) = (fx.queue("stock").await, fx.queue("shipping").await);
        let consumer = {
            let (bank, next) = (bank.clone(), next.clone());
            fx.mq.consumer::<u32>(queue.as_str()).transactional(bank.store())
                .start(move |mut work: Work<u32, B::D>| {
                    let (bank, next) = (bank.clone(), next.clone());
                    async move {
                        let id = work.message().id().to_owned();
                        B::effect(work.tx(), bank.name(), &id).await?;
                        let envelope = work.envelope().causing("stock.reserved");
                        let record = OutboxRecord::json("", next, work.payload())?.envelope(envelope);
                        bank.record(work.tx(), record).await?;
                        Ok(work.commit().await?)
                    }
                }).await.unwrap()
        };
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        let envelope = Envelope::new();
        for _ in 0..10 {
            publisher.send_with(&7, envelope.clone()).await.unwrap();
        }
        eventually("ten deliveries", async || {
            let stats = consumer.stats();
            (stats.acked, stats.duplicates) == (1, 9)
        }).await;
        assert_eq!(bank.effects().await, (1, 1));
        assert_eq!(bank.outbox().pending_count().await.unwrap(), 1);
        let _ = OutboxRelay::new(&fx.mq, bank.outbox()).drain(0).await.unwrap();
        let mut shipped = Inbox::of(&fx.mq, &next).await;
        assert_eq!(shipped.next().await.envelope().causation_id(), Some(envelope.id()));
    }

    async fn a_failing_handler_leaves_nothing_behind<B>(fx, bank) {
        let queue = fx.queue("stock").await;
        let runs = Arc::new(AtomicUsize::new(0));
        let consumer = {
            let (bank, runs) = (bank.clone(), runs.clone());
            fx.mq.consumer::<String>(queue.as_str()).retry(quickly(3)).transactional(bank.store())
                .start(move |mut work: Work<String, B::D>| {
                    let (bank, runs) = (bank.clone(), runs.clone());
                    async move {
                        let id = work.message().id().to_owned();
                        B::effect(work.tx(), bank.name(), &id).await?;
                        match (work.payload().as_str(), runs.fetch_add(1, Ordering::SeqCst)) {
                            ("third time", 0 | 1) => Err(HandlerError::retry("not yet")),
                            ("panic", _) => panic!("half-way"),
                            ("never", _) => Err(HandlerError::reject("no")),
                            _ => Ok(work.commit().await?),
                        }
                    }
                }).await.unwrap()
        };
        let publisher = fx.mq.publisher::<String>("", queue.as_str());
        publisher.send(&"third time".to_owned()).await.unwrap();
        eventually("the third attempt", async || consumer.stats().acked == 1).await;
        assert_eq!(bank.effects().await, (1, 1));
        publisher.send(&"panic".to_owned()).await.unwrap();
        publisher.send(&"never".to_owned()).await.unwrap();
        fx.until_length(&format!("{queue}.dlq"), 2).await;
        assert_eq!(bank.effects().await, (1, 1));
    }

    async fn a_message_that_failed_can_be_handled_later<B>(fx, bank) {
        // The claim went with the transaction: a replayed dead letter is not a duplicate.
        let queue = fx.queue("stock").await;
        let broken = Arc::new(AtomicUsize::new(1));
        let consumer = {
            let (bank, broken) = (bank.clone(), broken.clone());
            fx.mq.consumer::<u32>(queue.as_str()).retry(RetryPolicy::none()).transactional(bank.store())
                .start(move |mut work: Work<u32, B::D>| {
                    let (bank, broken) = (bank.clone(), broken.clone());
                    async move {
                        let id = work.message().id().to_owned();
                        B::effect(work.tx(), bank.name(), &id).await?;
                        if broken.load(Ordering::SeqCst) == 1 {
                            return Err(HandlerError::retry("broken"));
                        }
                        Ok(work.commit().await?)
                    }
                }).await.unwrap()
        };
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        let envelope = Envelope::new();
        publisher.send_with(&1, envelope.clone()).await.unwrap();
        fx.until_length(&format!("{queue}.dlq"), 1).await;
        broken.store(0, Ordering::SeqCst);
        publisher.send_with(&1, envelope).await.unwrap();
        eventually("the replay", async || consumer.stats().acked == 1).await;
        assert_eq!((bank.effects().await, consumer.stats().duplicates), ((1, 1), 0));
    }

    async fn in_a_batch_one_bad_message_rolls_back_alone<B>(fx, bank) {
        let queue = fx.queue("stock").await;
        let numbers: Vec<u32> = (0..200).collect();
        assert_eq!(fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await.confirmed(), 200);
        let consumer = {
            let bank = bank.clone();
            fx.mq.consumer::<u32>(queue.as_str()).retry(RetryPolicy::none()).transactional(bank.store())
                .batched(20).start(move |mut work: Work<u32, B::D>| {
                    let bank = bank.clone();
                    async move {
                        let id = work.message().id().to_owned();
                        B::effect(work.tx(), bank.name(), &id).await?;
                        match work.payload() % 10 {
                            3 => Err(HandlerError::reject("no threes")),
                            7 => panic!("no sevens"),
                            _ => Ok(work.commit().await?),
                        }
                    }
                }).await.unwrap()
        };
        eventually("all to be settled", async || {
            let stats = consumer.stats();
            (stats.acked, stats.dead_lettered) == (160, 40)
        }).await;
        assert_eq!(bank.effects().await, (160, 160));
    }

    async fn in_a_batch_a_statement_that_fails_spoils_no_neighbour<B>(fx, bank) {
        let queue = fx.queue("stock").await;
        let numbers: Vec<u32> = (0..60).collect();
        let _ = fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await;
        let consumer = {
            let bank = bank.clone();
            fx.mq.consumer::<u32>(queue.as_str()).retry(RetryPolicy::none()).transactional(bank.store())
                .batched(20).start(move |mut work: Work<u32, B::D>| {
                    let bank = bank.clone();
                    async move {
                        let id = work.message().id().to_owned();
                        B::effect(work.tx(), bank.name(), &id).await?;
                        if work.payload() % 10 == 5 {
                            B::effect(work.tx(), "missing_table_", &id).await?;
                        }
                        Ok(work.commit().await?)
                    }
                }).await.unwrap()
        };
        eventually("all to be settled", async || {
            let stats = consumer.stats();
            (stats.acked, stats.dead_lettered) == (54, 6)
        }).await;
        assert_eq!(bank.effects().await, (54, 54));
    }

    async fn a_handler_that_swallows_a_failed_statement_is_not_done<B>(fx, bank) {
        // PostgreSQL would answer its commit with a rollback and call that a success.
        for batch in [1, 10] {
            let queue = fx.queue("stock").await;
            let numbers: Vec<u32> = (0..10).collect();
            let _ = fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await;
            let (before, _) = bank.effects().await;
            let consumer = {
                let bank = bank.clone();
                fx.mq.consumer::<u32>(queue.as_str()).retry(quickly(2)).transactional(bank.store())
                    .batched(batch).start(move |mut work: Work<u32, B::D>| {
                        let bank = bank.clone();
                        async move {
                            let id = work.message().id().to_owned();
                            B::effect(work.tx(), bank.name(), &id).await?;
                            if *work.payload() == 9 {
                                let _ = B::effect(work.tx(), "missing_table_", &id).await;
                            }
                            Ok(work.commit().await?)
                        }
                    }).await.unwrap()
            };
            eventually("all to be settled", async || {
                let stats = consumer.stats();
                stats.acked + stats.dead_lettered == 10
            }).await;
            // Whoever was acknowledged has its effect.
            let (effects, different) = bank.effects().await;
            assert_eq!(effects - before, i64::try_from(consumer.stats().acked).unwrap());
            assert_eq!(effects, different);
        }
    }

    async fn copies_over_four_consumers_have_one_effect<B>(fx, bank) {
        let queue = fx.queue("stock").await;
        let mut consumers = Vec::new();
        for batch in [1, 1, 8, 8] {
            let bank = bank.clone();
            let mq = fx.another().await;
            let consumer = mq.consumer::<u32>(queue.as_str()).prefetch(16).concurrency(2)
                .retry(quickly(50)).transactional(bank.store()).batched(batch)
                .start(move |mut work: Work<u32, B::D>| {
                    let bank = bank.clone();
                    async move {
                        let id = work.message().id().to_owned();
                        B::effect(work.tx(), bank.name(), &id).await?;
                        Ok(work.commit().await?)
                    }
                }).await.unwrap();
            consumers.push(consumer);
        }
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        let sends = (0..100).map(|number: u32| {
            let (publisher, envelope) = (&publisher, Envelope::new());
            async move {
                for _ in 0..3 {
                    publisher.send_with(&number, envelope.clone()).await.unwrap();
                }
            }
        });
        futures::future::join_all(sends).await;
        eventually("300 deliveries to be settled", async || {
            let settled = consumers.iter().map(|consumer| {
                let stats = consumer.stats();
                stats.acked + stats.duplicates
            });
            settled.sum::<u64>() == 300
        }).await;
        assert_eq!(bank.effects().await, (100, 100));
        let acked: u64 = consumers.iter().map(|consumer| consumer.stats().acked).sum();
        assert_eq!(acked, 100);
    }

    async fn the_receipt_of_another_message_is_no_receipt<B>(fx, bank) {
        let queue = fx.queue("stock").await;
        let kept: Arc<Mutex<Option<Receipt>>> = Arc::default();
        let consumer = {
            let kept = kept.clone();
            fx.mq.consumer::<u32>(queue.as_str()).transactional(bank.store())
                .start(move |work: Work<u32, B::D>| {
                    let kept = kept.clone();
                    async move {
                        if let Some(receipt) = kept.lock().await.take() {
                            return Ok(receipt);
                        }
                        *kept.lock().await = Some(work.commit().await?);
                        WorkResult::Err(HandlerError::reject("kept its receipt"))
                    }
                }).await.unwrap()
        };
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        publisher.send(&1).await.unwrap();
        publisher.send(&2).await.unwrap();
        fx.until_length(&format!("{queue}.dlq"), 2).await;
        assert_eq!(consumer.stats().acked, 0);
    }
}

/// The database goes away three times while 300 messages are handled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_outage_loses_nothing_repeats_nothing_and_spends_no_attempt() {
    let direct = Pg::open(&unique()).await;
    direct.create().await;
    let url = url::Url::parse(&postgres_url()).unwrap();
    let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let proxy = Proxy::to(&target).await;
    let mut through = url.clone();
    through.set_host(Some("127.0.0.1")).unwrap();
    through.set_port(Some(proxy.port())).unwrap();
    let bank = Pg::open_at(through.as_str(), direct.name()).await;
    crate::support::run(crate::support::Broker::Memory, |fx| async move {
        let queue = fx.queue("stock").await;
        let handled = Arc::new(AtomicUsize::new(0));
        let consumer = {
            let (bank, handled) = (bank.clone(), handled.clone());
            fx.mq
                .consumer::<u32>(queue.as_str())
                .retry(quickly(20))
                .concurrency(2)
                .transactional(bank.store())
                .batched(5)
                .start(move |mut work: Work<u32, sqlx::Postgres>| {
                    let (bank, handled) = (bank.clone(), handled.clone());
                    async move {
                        let id = work.message().id().to_owned();
                        Pg::effect(work.tx(), bank.name(), &id).await?;
                        let receipt = work.commit().await?;
                        handled.fetch_add(1, Ordering::SeqCst);
                        Ok(receipt)
                    }
                })
                .await
                .unwrap()
        };
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        for round in 1..=3_usize {
            let numbers: Vec<u32> = (0..100).collect();
            assert_eq!(publisher.send_all(&numbers).await.confirmed(), 100);
            let before = handled.load(Ordering::SeqCst);
            eventually("work in progress", async || handled.load(Ordering::SeqCst) > before).await;
            proxy.refuse();
            proxy.forward();
            let settled = async || {
                let stats = consumer.stats();
                stats.acked + stats.duplicates == 100 * round as u64
            };
            eventually("the round to be settled", settled).await;
        }
        assert_eq!(direct.effects().await, (300, 300));
        assert_eq!(fx.mq.queue_length(&format!("{queue}.dlq")).await.unwrap(), Some(0));
        consumer.close().await;
        bank.drop().await;
    })
    .await;
}
