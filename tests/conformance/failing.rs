//! What becomes of a message that its handler is not done with.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use acemq::{
    Envelope, HandlerError, HandlerResult, HeaderValue, Message, Queue, ResultExt, RetryPolicy,
    TextCodec, Topology,
};
use bytes::Bytes;

use crate::support::{
    AnyBody, Fixture, Inbox, eventually, server::limits_deliveries_by_default, soon,
};

fn quickly(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, Duration::from_millis(5))
}

on_both_brokers! {
    async fn a_failing_message_is_dead_lettered_after_its_last_attempt(fx) {
        let queue = fx.queue("orders").await;
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let consumer = {
            let attempts = attempts.clone();
            fx.mq.consumer::<u32>(queue.as_str()).retry(quickly(3)).start(move |m: Message<u32>| {
                attempts.lock().unwrap().push((m.attempt(), m.id().to_owned()));
                async { Err(std::io::Error::other("boom"))? }
            }).await.unwrap()
        };
        let id = fx.mq.publisher::<u32>("", queue.as_str()).send(&42).await.unwrap();
        let mut dead = Inbox::of(&fx.mq, &format!("{queue}.dlq")).await;
        let message = dead.next().await;
        assert_eq!(message.id(), id);
        assert_eq!(message.attempt(), 3);
        assert_eq!(message.body().as_ref(), b"42");
        assert_eq!(message.envelope().error(), Some("exhausted 3 attempts: boom"));
        let seen: Vec<_> = attempts.lock().unwrap().clone();
        assert_eq!(seen, [(1, id.clone()), (2, id.clone()), (3, id)]);
        eventually("the counts", async || {
            let stats = consumer.stats();
            (stats.received, stats.retried, stats.dead_lettered, stats.acked) == (3, 2, 1, 0)
        }).await;
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
    }

    async fn a_message_over_the_own_limit_is_set_aside_and_replayed_all_the_same(fx) {
        let queue = fx.queue("orders").await;
        let mq = fx.options().max_body_size(1000).connect().await.unwrap();
        let consumer = mq
            .consumer::<String>(queue.as_str())
            .retry(quickly(2))
            .start(|_: Message<String>| async { Err(std::io::Error::other("boom"))? })
            .await
            .unwrap();
        // By somebody with another limit.
        let long = "x".repeat(5000);
        fx.mq.publisher::<String>("", queue.as_str()).send(&long).await.unwrap();
        let dead = format!("{queue}.dlq");
        fx.until_length(&dead, 1).await;
        eventually("the count", async || consumer.stats().retried == 1).await;
        consumer.close().await;
        assert_eq!(mq.replay(dead).run().await.unwrap().moved(), 1);
        fx.until_length(&queue, 1).await;
        let _ = mq.close().await;
    }

    async fn each_answer_of_a_handler_has_its_place(fx) {
        let queue = fx.queue("orders").await;
        let consumer = fx.mq.consumer::<String>(queue.as_str()).retry(quickly(2))
            .start(|m: Message<String>| async move { answer(m.payload()) }).await.unwrap();
        let publisher = fx.mq.publisher::<String>("", queue.as_str());
        for word in ["fine", "reject", "park", "panic", "retry"] {
            publisher.send(&word.to_owned()).await.unwrap();
        }
        fx.mq.publisher_with::<String>("", queue.as_str(), TextCodec).send(&"not JSON".into()).await.unwrap();
        fx.mq.publisher_with::<Bytes>("", queue.as_str(), acemq::BytesCodec)
            .content_type("application/json").send(&Bytes::from_static(b"{broken")).await.unwrap();

        let mut dead = Inbox::of(&fx.mq, &format!("{queue}.dlq")).await;
        let mut errors = Vec::new();
        for _ in 0..3 {
            errors.push(dead.next().await.envelope().error().unwrap().to_owned());
        }
        errors.sort();
        assert_eq!(errors, [
            "exhausted 2 attempts: try again",
            "the handler rejected it: never",
            "the handler reported an unprocessable message: the handler panicked: out of bounds",
        ]);
        let mut parked = Inbox::of(&fx.mq, &format!("{queue}.parked")).await;
        let mut errors = Vec::new();
        for _ in 0..3 {
            errors.push(parked.next().await.envelope().error().unwrap().to_owned());
        }
        errors.sort();
        assert!(errors[0].starts_with("could not be decoded: content type `text/plain"), "{errors:?}");
        assert!(errors[1].starts_with("could not be decoded: invalid type: map"), "{errors:?}");
        assert_eq!(errors[2], "the handler parked it: look at this");
        eventually("the counts", async || {
            let s = consumer.stats();
            (s.acked, s.dead_lettered, s.parked, s.retried, s.in_flight) == (1, 3, 3, 1, 0)
        }).await;
    }

    async fn a_deferred_message_comes_again_without_an_attempt_counted(fx) {
        let queue = fx.queue("orders").await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let consumer = {
            let seen = seen.clone();
            fx.mq.consumer::<u32>(queue.as_str()).retry(RetryPolicy::none()).start(move |m: Message<u32>| {
                let mut seen = seen.lock().unwrap();
                seen.push(m.attempt());
                let answer = if seen.len() < 4 { Err("locked") } else { Ok(()) };
                std::future::ready(answer.defer(Duration::from_millis(5)))
            }).await.unwrap()
        };
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        eventually("the fourth time", async || consumer.stats().acked == 1).await;
        assert_eq!(*seen.lock().unwrap(), [1, 1, 1, 1]);
        eventually("the count", async || consumer.stats().deferred == 3).await;
    }

    async fn a_retried_message_is_the_same_message(fx) {
        let queue = fx.queue("orders").await;
        let (seen, mut messages) = tokio::sync::mpsc::unbounded_channel();
        let consumer = fx.mq.consumer_with::<Bytes>(queue.as_str(), AnyBody).retry(quickly(2))
            .start(move |m: Message<Bytes>| {
                let sent = seen.send(m);
                async move { sent?; Err(HandlerError::retry("again")) }
            }).await.unwrap();
        let body = Bytes::from_static(b"{\"b\":1.0, \"a\": 1,\"a\":2}\x00\xff");
        let envelope = Envelope::of("kind").version(3).correlation("c").caused_by("p")
            .with_origin("o@h").with_claim("s3://x").header("acemq-reply-to", "answers")
            .header("list", HeaderValue::List(vec![HeaderValue::Int(1)])).header("empty", "");
        fx.mq.publisher_with::<Bytes>("", queue.as_str(), acemq::BytesCodec)
            .content_type("application/vnd.own; v=1").send_with(&body, envelope).await.unwrap();
        let first: Message<Bytes> = soon("a message", messages.recv()).await.unwrap();
        let second = soon("its retry", messages.recv()).await.unwrap();
        let mut dead = Inbox::of(&fx.mq, &format!("{queue}.dlq")).await;
        let third = dead.next().await;
        for (attempt, copy) in [(2, &second), (2, &third)] {
            let expected = first.envelope().clone().with_attempt(attempt);
            assert_eq!(copy.envelope().clone().with_error(""), expected);
            assert_eq!(copy.body(), &body);
            assert_eq!(copy.content_type(), Some("application/vnd.own; v=1"));
            assert_eq!(copy.reply_to(), Some("answers"));
        }
        drop(consumer);
    }

    async fn a_long_wait_is_spent_in_the_broker(fx) {
        let queue = fx.queue("orders").await;
        let policy = RetryPolicy::fixed(2, Duration::from_secs(1)).broker_threshold(Duration::from_secs(1));
        let consumer = fx.mq.consumer::<u32>(queue.as_str()).retry(policy).start(|m: Message<u32>| async move {
            if m.attempt() == 1 { Err("not yet").retry_after(Duration::from_millis(1000))?; }
            Ok(())
        }).await.unwrap();
        let rung = format!("{queue}.retry.1s");
        assert_eq!(fx.mq.queue_length(&rung).await.unwrap(), Some(0));
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        fx.until_length(&rung, 1).await;
        eventually("the count", async || consumer.stats().retried == 1).await;
        eventually("the second attempt", async || consumer.stats().acked == 1).await;
        assert_eq!(consumer.stats().rung_missing, 0);
    }

    async fn a_missing_rung_makes_the_consumer_wait_itself(fx) {
        let queue = fx.queue("orders").await;
        let policy = RetryPolicy::fixed(2, Duration::from_secs(1)).broker_threshold(Duration::from_secs(1));
        let consumer = fx.mq.consumer::<u32>(queue.as_str()).retry(policy).start(|m: Message<u32>| async move {
            if m.attempt() == 1 { Err(HandlerError::retry("not yet")) } else { Ok(()) }
        }).await.unwrap();
        fx.mq.delete_queue(&format!("{queue}.retry.1s")).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        eventually("the second attempt", async || consumer.stats().acked == 1).await;
        assert_eq!(consumer.stats().rung_missing, 1);
    }

    async fn a_missing_dead_letter_queue_is_declared_again_and_nothing_is_lost(fx) {
        let queue = fx.queue("orders").await;
        let consumer = fx.mq.consumer::<u32>(queue.as_str())
            .start(|_| async { Err(HandlerError::reject("no")) }).await.unwrap();
        let dead_letters = format!("{queue}.dlq");
        fx.mq.delete_queue(&dead_letters).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        fx.until_length(&dead_letters, 1).await;
        assert_eq!(consumer.stats().set_aside_failed, 0);
    }

    async fn an_error_text_of_a_megabyte_is_cut_and_the_message_still_moves(fx) {
        let queue = fx.queue("orders").await;
        let consumer = fx.mq.consumer::<u32>(queue.as_str())
            .start(|_| async { Err(HandlerError::reject("日本\0".repeat(150_000))) }).await.unwrap();
        let headers = Envelope::new().header("large", "x".repeat(120 * 1024));
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        publisher.send(&1).await.unwrap();
        publisher.send_with(&2, headers).await.unwrap();
        let mut dead = Inbox::of(&fx.mq, &format!("{queue}.dlq")).await;
        for _ in 0..2 {
            let error = dead.next().await.envelope().error().unwrap().to_owned();
            assert!(error.starts_with("the handler rejected it: 日本"), "{error:.60}");
            assert!((1000..=8192).contains(&error.len()), "{} bytes", error.len());
        }
        drop(consumer);
    }

    async fn one_undecodable_message_stops_no_other(fx) {
        let queue = fx.queue("orders").await;
        let bad = fx.mq.publisher_with::<Bytes>("", queue.as_str(), acemq::BytesCodec).content_type("application/json");
        bad.send(&Bytes::from_static(b"\xff")).await.unwrap();
        let numbers: Vec<u32> = (0..1000).collect();
        let _ = fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await;
        let consumer = fx.mq.consumer::<u32>(queue.as_str()).start(|_| async { Ok(()) }).await.unwrap();
        eventually("the good ones", async || consumer.stats().acked == 1000).await;
        eventually("the bad one", async || consumer.stats().parked == 1).await;
        assert_eq!(consumer.stats().received, 1001);
    }

    async fn a_message_over_its_delivery_limit_is_dead_lettered_by_the_broker(fx) {
        let queue = fx.name("limited");
        let limited = Queue::new(queue.as_str()).delivery_limit(2);
        fx.mq.declare(&Topology::new().queue(limited)).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        // A process that dies three times over the same message.
        for _ in 0..3 {
            give_back(&fx, &queue).await;
        }
        let mut dead = Inbox::of(&fx.mq, &format!("{queue}.dlq")).await;
        let message = dead.next().await;
        assert_eq!(message.envelope().error(), None);
        let Some(HeaderValue::List(deaths)) = message.headers().get("x-death") else {
            panic!("no x-death in {:?}", message.headers())
        };
        let HeaderValue::Table(death) = &deaths[0] else { panic!("{deaths:?}") };
        assert_eq!(death.text("reason"), Some("delivery_limit"));
        assert_eq!(death.text("queue"), Some(queue.as_str()));
    }

    async fn a_message_that_is_given_back_often_is_never_lost(fx) {
        let queue = fx.queue("orders").await;
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        let limited = limits_deliveries_by_default(fx.broker).await;
        for returns in 1..=21_u64 {
            give_back(&fx, &queue).await;
            // RabbitMQ 4 has a limit of 20 returns where the queue names none.
            let aside = if limited && returns == 21 { 1 } else { 0 };
            fx.until_length(&queue, 1 - aside).await;
            fx.until_length(&format!("{queue}.dlq"), aside).await;
        }
        if limited {
            let report = fx.mq.replay(format!("{queue}.dlq")).run().await.unwrap();
            assert_eq!(report.moved(), 1);
        }
        // The count began anew, if it was ever limited.
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        assert_eq!(inbox.next().await.body().as_ref(), b"1");
    }
}

/// Closes a consumer that has a message in hand.
async fn give_back(fx: &Fixture, queue: &str) {
    let mq = fx.options().shutdown_timeout(Duration::ZERO).connect().await.unwrap();
    let consumer = mq.consumer::<u32>(queue);
    let consumer = consumer.start(|_| std::future::pending::<HandlerResult>()).await.unwrap();
    eventually("the delivery", async || consumer.stats().in_flight == 1).await;
    let _ = mq.close().await;
}

fn answer(word: &str) -> HandlerResult {
    match word {
        "reject" => Err(HandlerError::reject("never")),
        "park" => Err(HandlerError::park("look at this")),
        "retry" => Err(HandlerError::retry("try again")),
        "panic" => panic!("out of bounds"),
        _ => Ok(()),
    }
}
