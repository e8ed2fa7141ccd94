//! Consuming when nothing goes wrong, and starting, pausing and stopping.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{
    ConsumerState, Envelope, Error, HandlerResult, HeaderValue, Headers, Message, Queue, Topology,
};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};

use crate::support::{AnyBody, Inbox, eventually, server::limits_deliveries_by_default, soon};

on_both_brokers! {
    async fn a_handled_message_leaves_its_queue(fx) {
        let queue = fx.queue("orders").await;
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        let envelope = Envelope::of("order.placed").correlation("order-7").header("x-tenant", "acme");
        let id = fx.mq.publisher::<u32>("", queue.as_str()).send_with(&7, envelope).await.unwrap();
        let message = inbox.next().await;
        assert_eq!((message.id(), message.body().as_ref()), (id.as_str(), b"7".as_slice()));
        assert_eq!(message.envelope().message_type(), "order.placed");
        assert_eq!(message.envelope().correlation_id(), "order-7");
        assert_eq!(message.headers().text("x-tenant"), Some("acme"));
        assert_eq!((message.attempt(), message.is_redelivered()), (1, false));
        assert_eq!((message.exchange(), message.routing_key()), ("", queue.as_str()));
        assert!(message.envelope().origin().unwrap().starts_with("acemq@"));
        inbox.consumer.close().await;
        assert_eq!(inbox.consumer.stats().acked, 1);
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
    }

    async fn every_kind_of_header_arrives_as_it_was_sent(fx) {
        let queue = fx.queue("orders").await;
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        let mut nested = Headers::new();
        nested.insert("inner", HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::Null]));
        let sent = [
            ("bool", HeaderValue::Bool(true)),
            ("int", HeaderValue::Int(i32::MIN)),
            ("long", HeaderValue::Long(i64::MAX)),
            ("double", HeaderValue::Double(0.1)),
            ("text", HeaderValue::from("日本語\n\0")),
            ("empty", HeaderValue::from("")),
            ("bytes", HeaderValue::Bytes(Bytes::from_static(b"\x00\xff"))),
            ("time", HeaderValue::Timestamp(1_700_000_000)),
            ("table", HeaderValue::Table(nested)),
            ("none", HeaderValue::Null),
        ];
        let envelope = sent.iter().fold(Envelope::new(), |e, (k, v)| e.header(*k, v.clone()));
        fx.mq.publisher::<u32>("", queue.as_str()).send_with(&1, envelope).await.unwrap();
        let message = inbox.next().await;
        for (name, value) in sent {
            assert_eq!(message.headers().get(name), Some(&value), "{name}");
        }
    }

    async fn bodies_of_any_size_arrive_byte_for_byte(fx) {
        let queue = fx.queue("blobs").await;
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        let publisher = fx.mq.publisher_with::<Bytes>("", queue.as_str(), acemq::BytesCodec);
        for size in [0, 1, 255, 4096, 131_064, 131_072, 131_073, 1_000_000] {
            let body: Bytes = (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect();
            publisher.send(&body).await.unwrap();
            assert_eq!(inbox.next().await.body(), &body, "{size} bytes");
        }
    }

    async fn a_queue_keeps_its_order_with_one_handler(fx) {
        let queue = fx.queue("orders").await;
        let numbers: Vec<u32> = (0..500).collect();
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        for number in &numbers {
            publisher.send(number).await.unwrap();
        }
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        for number in numbers {
            assert_eq!(inbox.next().await.body().as_ref(), number.to_string().as_bytes());
        }
    }

    async fn concurrency_is_a_limit_and_is_reached(fx) {
        let queue = fx.queue("orders").await;
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Semaphore::new(0));
        let consumer = {
            let (running, most, gate) = (running.clone(), most.clone(), gate.clone());
            fx.mq.consumer::<u32>(queue.as_str()).concurrency(4).start(move |_| {
                let (running, most, gate) = (running.clone(), most.clone(), gate.clone());
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    gate.acquire().await?.forget();
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }
            }).await.unwrap()
        };
        let numbers: Vec<u32> = (0..20).collect();
        let _ = fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await;
        eventually("four handlers to run", async || running.load(Ordering::SeqCst) == 4).await;
        gate.add_permits(20);
        eventually("all to be handled", async || consumer.stats().acked == 20).await;
        assert_eq!(most.load(Ordering::SeqCst), 4);
    }

    async fn prefetch_limits_what_one_consumer_holds(fx) {
        let queue = fx.queue("orders").await;
        let numbers: Vec<u32> = (0..10).collect();
        let _ = fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await;
        let never = fx.mq.consumer::<u32>(queue.as_str()).prefetch(3)
            .start(|_| std::future::pending::<HandlerResult>()).await.unwrap();
        fx.until_length(&queue, 7).await;
        drop(never);
    }

    async fn a_closed_consumer_gives_back_what_it_did_not_start(fx) {
        let queue = fx.queue("orders").await;
        let numbers: Vec<u32> = (0..30).collect();
        let _ = fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await;
        let (started, mut starts) = mpsc::unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        let consumer = {
            let gate = gate.clone();
            fx.mq.consumer::<u32>(queue.as_str()).prefetch(20).start(move |m: Message<u32>| {
                let (started, gate) = (started.clone(), gate.clone());
                async move {
                    started.send(*m.payload())?;
                    gate.acquire().await?.forget();
                    Ok(())
                }
            }).await.unwrap()
        };
        assert_eq!(soon("a start", starts.recv()).await, Some(0));
        let closing = tokio::spawn(async move { (consumer.close().await, consumer.stats()) });
        // Only the message that is being handled stays away.
        fx.until_length(&queue, 29).await;
        gate.add_permits(30);
        let (shutdown, stats) = closing.await.unwrap();
        assert!(shutdown.is_complete());
        assert_eq!((stats.received, stats.acked), (1, 1));
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(29));
        // Without a delivery limit, as before RabbitMQ 4, a quorum queue delivers what was given back
        // after what still waits; with one before it. In order both times.
        let first = if limits_deliveries_by_default(fx.broker).await { 1 } else { 20 };
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        for number in (first..30).chain(1..first) {
            let message = inbox.next().await;
            assert_eq!(message.body().as_ref(), number.to_string().as_bytes());
            assert_eq!(message.is_redelivered(), number < 20);
        }
    }

    async fn a_handler_that_never_ends_is_abandoned_at_the_deadline(fx) {
        let queue = fx.queue("orders").await;
        let mq = fx.options().shutdown_timeout(Duration::from_millis(200)).connect().await.unwrap();
        let consumer = mq.consumer::<u32>(queue.as_str())
            .start(|_| std::future::pending::<HandlerResult>()).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        eventually("the handler to run", async || consumer.stats().in_flight == 1).await;
        let shutdown = soon("the close", mq.close()).await;
        assert_eq!(shutdown.abandoned(), 1);
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        assert!(inbox.next().await.is_redelivered());
    }

    async fn a_paused_consumer_takes_nothing_until_it_is_resumed(fx) {
        let queue = fx.queue("orders").await;
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        publisher.send(&1).await.unwrap();
        inbox.next().await;
        inbox.consumer.pause();
        eventually("the pause", async || inbox.consumer.state() == ConsumerState::Paused).await;
        publisher.send(&2).await.unwrap();
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(1));
        assert_eq!(inbox.consumer.stats().received, 1);
        inbox.consumer.resume();
        assert_eq!(inbox.next().await.body().as_ref(), b"2");
    }

    async fn two_consumers_share_a_queue_and_handle_each_message_once(fx) {
        let queue = fx.queue("orders").await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let start = async |mq: &acemq::AceMq| {
            let seen = seen.clone();
            mq.consumer::<u32>(queue.as_str()).prefetch(5).start(move |m: Message<u32>| {
                seen.lock().unwrap().push(*m.payload());
                async { Ok(()) }
            }).await.unwrap()
        };
        let other = fx.another().await;
        let (one, two) = (start(&fx.mq).await, start(&other).await);
        let numbers: Vec<u32> = (0..500).collect();
        assert_eq!(fx.mq.publisher::<u32>("", queue.as_str()).send_all(&numbers).await.confirmed(), 500);
        eventually("all to be handled", async || one.stats().acked + two.stats().acked == 500).await;
        assert!(one.stats().acked > 50 && two.stats().acked > 50, "one consumer starved");
        let seen = seen.lock().unwrap();
        assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 500);
        assert_eq!(seen.len(), 500);
        drop((one, two));
    }

    async fn a_single_active_consumer_hands_over_when_it_stops(fx) {
        let queue = fx.name("single");
        let single = Queue::new(queue.as_str()).single_active_consumer();
        fx.mq.declare(&Topology::new().queue(single)).await.unwrap();
        let mut first = Inbox::of(&fx.mq, &queue).await;
        let mut second = Inbox::of(&fx.mq, &queue).await;
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        for number in 0..10 {
            publisher.send(&number).await.unwrap();
            first.next().await;
        }
        assert_eq!(second.consumer.stats().received, 0);
        first.consumer.close().await;
        publisher.send(&10).await.unwrap();
        assert_eq!(second.next().await.body().as_ref(), b"10");
    }

    async fn an_exclusive_consumer_keeps_others_away(fx) {
        // Quorum queues do not know exclusive consumers.
        let queue = fx.name("classic");
        fx.mq.declare(&Topology::new().queue(Queue::classic(queue.as_str()))).await.unwrap();
        let alone = fx.mq.consumer::<u32>(queue.as_str()).exclusive()
            .start(|_| async { Ok(()) }).await.unwrap();
        let second = fx.mq.consumer::<u32>(queue.as_str()).start(|_| async { Ok(()) }).await;
        assert!(matches!(second, Err(Error::BrokerRefused { code: 403, .. })), "{second:?}");
        drop(alone);
    }

    async fn a_missing_queue_is_an_error_at_the_start(fx) {
        let missing = fx.name("missing");
        let error = fx.mq.consumer::<u32>(missing.as_str()).start(|_| async { Ok(()) }).await.unwrap_err();
        assert!(matches!(&error, Error::NotFound { reason } if reason.contains(&missing)), "{error}");
    }

    async fn absurd_options_are_refused_by_their_name(fx) {
        let queue = fx.queue("orders").await;
        let consumer = || fx.mq.consumer_with::<Bytes>(queue.as_str(), AnyBody);
        for (consumer, name) in [
            (consumer().prefetch(0), "prefetch"),
            (consumer().concurrency(0), "concurrency"),
            (consumer().prefetch(2).concurrency(3), "concurrency"),
            (consumer().retry(acemq::RetryPolicy::fixed(0, Duration::ZERO)), "max_attempts"),
        ] {
            let error = consumer.start(|_| async { Ok(()) }).await.unwrap_err();
            assert!(matches!(error, Error::InvalidOption { option, .. } if option == name), "{error}");
        }
    }

    async fn a_queue_deleted_under_its_consumer_is_declared_again(fx) {
        let queue = fx.queue("orders").await;
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        let publisher = fx.mq.publisher::<u32>("", queue.as_str());
        let vandal = fx.another().await;
        for round in 0..5 {
            publisher.send(&round).await.unwrap();
            assert_eq!(inbox.next().await.body().as_ref(), round.to_string().as_bytes());
            vandal.delete_queue(&queue).await.unwrap();
            eventually("the queue to be back", async || {
                publisher.send(&100).await.is_ok()
            }).await;
            assert_eq!(inbox.next().await.body().as_ref(), b"100");
        }
        vandal.close().await;
    }
}
