//! Moving dead letters back to work.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use acemq::{
    Claim, Envelope, Error, Exchange, HandlerError, IdempotencyStore, MemoryIdempotencyStore,
    Message, Queue, ReplayEnd, ReplayFilter, RetryPolicy, Topology,
    consume::{ReplayCandidate, ReplayProgress},
};

use crate::support::{Broker, Fixture, Inbox, eventually, proxy::Proxy, soon};

/// A queue, its dead-letter queue, and as many dead letters, numbered from 1.
async fn with_dead_letters(fx: &Fixture, count: u32) -> (String, String) {
    let queue = fx.queue("orders").await;
    let dead_letters = format!("{queue}.dlq");
    for number in 1..=count {
        bury(fx, &dead_letters, number, given_up()).await;
    }
    (queue, dead_letters)
}

/// The envelope of a message that a consumer gave up on.
fn given_up() -> Envelope {
    Envelope::of("order.placed").with_attempt(3).with_error("exhausted 3 attempts: boom")
}

async fn bury(fx: &Fixture, dead_letters: &str, number: u32, envelope: Envelope) -> String {
    fx.mq.publisher::<u32>("", dead_letters).send_with(&number, envelope).await.unwrap()
}

/// The messages of a queue in their order. Works on any queue, since a preview needs no target.
async fn look(fx: &Fixture, queue: &str) -> Vec<ReplayCandidate> {
    fx.mq.replay(queue).preview(1000).await.unwrap()
}

async fn numbers(fx: &Fixture, queue: &str) -> Vec<u32> {
    let number = |c: &ReplayCandidate| std::str::from_utf8(c.body()).unwrap().parse().unwrap();
    look(fx, queue).await.iter().map(number).collect()
}

on_both_brokers! {
    async fn a_preview_shows_the_messages_and_leaves_each_in_its_place(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 5).await;
        let replay = fx.mq.replay(&dead_letters);
        for _ in 0..3 {
            let found = replay.preview(3).await.unwrap();
            assert_eq!(found.len(), 3);
            let first = &found[0];
            assert_eq!(first.body().as_ref(), b"1");
            assert_eq!((first.message_type(), first.attempt()), ("order.placed", 3));
            assert_eq!(first.error(), Some("exhausted 3 attempts: boom"));
            assert_eq!(first.content_type(), Some("application/json"));
            assert!(first.age() < Duration::from_secs(60) && first.first_seen_at().is_some());
            assert_eq!((first.died(), first.replayed()), (None, None));
        }
        assert_eq!(replay.preview(0).await.unwrap().len(), 0);
        assert_eq!(numbers(&fx, &dead_letters).await, [1, 2, 3, 4, 5]);
        assert_eq!(fx.mq.queue_length(&dead_letters).await.unwrap(), Some(5));
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
    }

    async fn a_replay_moves_every_message_back_in_order(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 20).await;
        let ids: Vec<_> = look(&fx, &dead_letters).await.iter().map(|c| c.id().to_owned()).collect();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let progress = seen.clone();
        let report = fx.mq.replay(&dead_letters)
            .on_progress(move |done: &ReplayProgress| progress.lock().unwrap().push(done.moved))
            .run().await.unwrap();
        assert_eq!((report.moved(), report.skipped(), report.already_done()), (20, 0, 0));
        assert!(report.is_drained() && report.error().is_none(), "{report:?}");
        assert_eq!(*seen.lock().unwrap(), (1..=20).collect::<Vec<u64>>());
        assert_eq!(fx.mq.queue_length(&dead_letters).await.unwrap(), Some(0));
        let moved = look(&fx, &queue).await;
        assert_eq!(moved.iter().map(ReplayCandidate::id).collect::<Vec<_>>(), ids);
        assert_eq!(numbers(&fx, &queue).await, (1..=20).collect::<Vec<u32>>());
    }

    async fn a_replayed_message_is_the_same_message_with_a_stamp(fx) {
        let queue = fx.queue("orders").await;
        let dead_letters = format!("{queue}.dlq");
        let envelope = given_up().version(3).correlation("c").caused_by("p").with_origin("o@h")
            .with_claim("s3://x").header("acemq-reply-to", "answers").header("empty", "");
        bury(&fx, &dead_letters, 1, envelope).await;
        let before = look(&fx, &dead_letters).await.remove(0);
        let _ = fx.mq.replay(&dead_letters).run().await.unwrap();
        let after = look(&fx, &queue).await.remove(0);

        let stamp = after.replayed().unwrap();
        assert_eq!((stamp.replayed_from(), stamp.count()), (dead_letters.as_str(), 1));
        assert!(stamp.replayed_at().is_some());
        let mut unstamped = after.envelope().clone();
        for name in ["acemq-replayed-from", "acemq-replayed-at", "acemq-replay-count", "x-delivery-count"] {
            unstamped = unstamped.without_header(name);
        }
        assert_eq!(unstamped, before.envelope().clone().with_attempt(1).with_error(""));
        assert_eq!((after.body(), after.content_type()), (before.body(), before.content_type()));
    }

    async fn attempts_and_error_are_kept_where_that_is_asked_for(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 1).await;
        let _ = fx.mq.replay(&dead_letters).keep_attempts().run().await.unwrap();
        let kept = look(&fx, &queue).await.remove(0);
        assert_eq!((kept.attempt(), kept.error()), (3, Some("exhausted 3 attempts: boom")));
        assert_eq!(kept.replayed().unwrap().count(), 1);
    }

    async fn the_stamp_counts_every_replay(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 1).await;
        for count in 1..=3 {
            let report = fx.mq.replay(&dead_letters).run().await.unwrap();
            assert_eq!((report.moved(), report.is_drained()), (1, true), "{report:?}");
            assert_eq!(look(&fx, &queue).await[0].replayed().unwrap().count(), count);
            let consumer = fx.mq.consumer::<u32>(&queue)
                .start(|_| async { Err(HandlerError::reject("still broken")) }).await.unwrap();
            fx.until_length(&dead_letters, 1).await;
            consumer.close().await;
        }
    }

    async fn each_filter_picks_its_messages_and_several_must_all_agree(fx) {
        let queue = fx.queue("orders").await;
        let dead_letters = format!("{queue}.dlq");
        let hours = |n: u64| Duration::from_secs(n * 3600);
        let ago = |n: u64| chrono::Utc::now() - hours(n);
        let own = |kind: &str| Envelope::of(kind).with_error("the handler rejected it: no stock");
        bury(&fx, &dead_letters, 1, given_up().first_seen(ago(48)).header("x-tenant", "acme")).await;
        bury(&fx, &dead_letters, 2, given_up().first_seen(ago(1)).header("x-shard", 7_i64)).await;
        bury(&fx, &dead_letters, 3, own("order.cancelled").header("x-tenant", "acme")).await;
        let fourth = bury(&fx, &dead_letters, 4, own("order.placed").header("x-tenant", "other")).await;

        let only = ReplayFilter::new;
        let table: [(ReplayFilter, &[u32]); 10] = [
            (only(), &[1, 2, 3, 4]),
            (only().message_type("order.placed"), &[1, 2, 4]),
            (only().min_age(hours(24)), &[1]),
            (only().max_age(hours(24)), &[2, 3, 4]),
            (only().min_age(hours(1)).max_age(hours(24)), &[2]),
            (only().error_contains("boom"), &[1, 2]),
            (only().header("x-tenant", "acme"), &[1, 3]),
            (only().header("x-shard", 7), &[2]),
            (only().message_id(fourth.as_str()), &[4]),
            (only().message_type("order.placed").header("x-tenant", "acme").error_contains("boom"), &[1]),
        ];
        for (filter, expected) in table {
            let report = fx.mq.replay(&dead_letters).filter(filter.clone()).dry_run().run().await.unwrap();
            assert_eq!(report.moved(), expected.len() as u64, "{filter:?}");
            let found = fx.mq.replay(&dead_letters).filter(filter.clone()).preview(10).await.unwrap();
            let found: Vec<u32> =
                found.iter().map(|c| std::str::from_utf8(c.body()).unwrap().parse().unwrap()).collect();
            assert_eq!(found, expected, "{filter:?}");
        }
        let report = fx.mq.replay(&dead_letters)
            .filter(only().message_type("order.placed")).filter(only().max_age(hours(24)))
            .matching(|candidate| candidate.body().as_ref() != b"2")
            .run().await.unwrap();
        assert_eq!((report.moved(), report.skipped()), (1, 3));
        assert_eq!(numbers(&fx, &queue).await, [4]);
    }

    async fn declined_messages_keep_their_place_and_those_behind_them_are_reached(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 30).await;
        let report = fx.mq.replay(&dead_letters)
            .matching(|c| c.body().ends_with(b"0") || c.body().ends_with(b"5"))
            .run().await.unwrap();
        assert_eq!((report.moved(), report.skipped()), (6, 24));
        assert!(report.is_drained());
        assert_eq!(numbers(&fx, &queue).await, [5, 10, 15, 20, 25, 30]);
        let rest: Vec<u32> = (1..30).filter(|n| n % 5 != 0).collect();
        assert_eq!(numbers(&fx, &dead_letters).await, rest);
    }

    async fn a_limit_ends_the_replay(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 5).await;
        let report = fx.mq.replay(&dead_letters).limit(2).matching(|c| c.body() != "1").run().await.unwrap();
        assert_eq!((report.moved(), report.skipped()), (2, 1));
        assert!(matches!(report.ended(), ReplayEnd::Limit), "{report:?}");
        assert_eq!(numbers(&fx, &queue).await, [2, 3]);
        assert_eq!(numbers(&fx, &dead_letters).await, [1, 4, 5]);
        let report = fx.mq.replay(&dead_letters).limit(0).run().await.unwrap();
        assert_eq!(report.moved(), 0);
    }

    async fn too_many_declined_messages_end_the_replay(fx) {
        let (_, dead_letters) = with_dead_letters(&fx, 5).await;
        let report = fx.mq.replay(&dead_letters).hold_at_most(3).matching(|_| false).run().await.unwrap();
        assert!(matches!(report.ended(), ReplayEnd::HoldLimit), "{report:?}");
        assert_eq!(report.skipped(), 3);
        assert_eq!(fx.mq.replay(&dead_letters).hold_at_most(3).preview(9).await.unwrap().len(), 3);
        assert_eq!(numbers(&fx, &dead_letters).await, [1, 2, 3, 4, 5]);
    }

    async fn a_dry_run_moves_nothing(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 3).await;
        let report = fx.mq.replay(&dead_letters).dry_run().run().await.unwrap();
        assert_eq!((report.moved(), report.is_drained()), (3, true));
        assert_eq!(numbers(&fx, &dead_letters).await, [1, 2, 3]);
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
    }

    async fn the_time_limit_and_the_rate_hold(fx) {
        let (_, dead_letters) = with_dead_letters(&fx, 8).await;
        let report = fx.mq.replay(&dead_letters).within(Duration::ZERO).run().await.unwrap();
        assert!(matches!(report.ended(), ReplayEnd::Deadline), "{report:?}");
        assert_eq!(report.moved(), 0);

        let slowly = fx.mq.replay(&dead_letters).rate(0.000_001).within(Duration::from_millis(300));
        let report = soon("the deadline", slowly.run()).await.unwrap();
        assert!(matches!(report.ended(), ReplayEnd::Deadline), "{report:?}");
        assert_eq!(report.moved(), 1);

        let started = Instant::now();
        let report = fx.mq.replay(&dead_letters).rate(50.0).run().await.unwrap();
        assert_eq!(report.moved(), 7);
        assert!(started.elapsed() >= Duration::from_millis(6 * 20), "{:?}", started.elapsed());
    }

    async fn messages_go_where_they_are_sent(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 2).await;
        let (exchange, other) = (fx.name("exchange"), fx.queue("other").await);
        fx.mq.declare(&Topology::new().exchange(Exchange::topic(exchange.as_str()).auto_delete())
            .bind(other.as_str(), exchange.as_str(), "again.*")).await.unwrap();
        let report = fx.mq.replay(&dead_letters).to(&exchange, "again.now").run().await.unwrap();
        assert_eq!(report.moved(), 2);
        let mut inbox = Inbox::of(&fx.mq, &other).await;
        let message = inbox.next().await;
        assert_eq!((message.exchange(), message.routing_key()), (exchange.as_str(), "again.now"));
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
        // The parked queue has a way back too, and a name without one needs a target.
        let parked = format!("{queue}.parked");
        fx.mq.declare(&Topology::new().queue(Queue::classic(parked.as_str()))).await.unwrap();
        fx.mq.publisher::<u32>("", &parked).send(&9).await.unwrap();
        assert_eq!(fx.mq.replay(&parked).run().await.unwrap().moved(), 1);
        assert_eq!(numbers(&fx, &queue).await, [9]);
        let error = fx.mq.replay(&queue).run().await.unwrap_err();
        assert!(error.to_string().contains("say where to with `to`"), "{error}");
        assert_eq!(fx.mq.replay(&queue).to("", &other).run().await.unwrap().moved(), 1);
    }

    async fn a_replay_into_the_same_queue_is_refused(fx) {
        let (_, dead_letters) = with_dead_letters(&fx, 1).await;
        for exchange in ["", "acemq.dlx"] {
            let error = fx.mq.replay(&dead_letters).to(exchange, &dead_letters).run().await.unwrap_err();
            assert!(matches!(error, Error::InvalidOption { option: "to", .. }), "{error}");
        }
        assert_eq!(fx.mq.queue_length(&dead_letters).await.unwrap(), Some(1));
    }

    async fn options_that_cannot_work_are_refused_by_their_name(fx) {
        let (_, dead_letters) = with_dead_letters(&fx, 1).await;
        let replay = || fx.mq.replay(&dead_letters);
        for (replay, name) in [
            (replay().rate(0.0), "rate"),
            (replay().rate(f64::NAN), "rate"),
            (replay().rate(f64::INFINITY), "rate"),
            (replay().hold_at_most(0), "hold_at_most"),
            (replay().even_if_done(), "even_if_done"),
            (replay().releasing(MemoryIdempotencyStore::new(), ""), "consumer_name"),
            (replay().to("", "k".repeat(256)), "routing_key"),
            (fx.mq.replay(""), "queue"),
        ] {
            let error = replay.run().await.unwrap_err();
            assert!(matches!(error, Error::InvalidOption { option, .. } if option == name), "{error}");
        }
        let missing = fx.name("missing");
        let error = fx.mq.replay(format!("{missing}.dlq")).run().await.unwrap_err();
        assert!(matches!(&error, Error::NotFound { reason } if reason.contains(&missing)), "{error}");
    }

    async fn a_message_that_no_queue_takes_ends_the_replay_and_stays(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 4).await;
        let (nowhere, exchange) = (fx.name("nowhere"), fx.name("missing"));
        let report = fx.mq.replay(&dead_letters).matching(|c| c.body() != "1").to("", &nowhere).run().await.unwrap();
        assert_eq!((report.moved(), report.skipped()), (0, 1));
        assert!(matches!(report.error(), Some(Error::Unroutable { .. })), "{report:?}");
        let report = fx.mq.replay(&dead_letters).to(&exchange, "key").run().await.unwrap();
        assert!(matches!(report.error(), Some(Error::NotFound { .. })), "{report:?}");
        assert_eq!(numbers(&fx, &dead_letters).await, [1, 2, 3, 4]);

        // A target that goes away in the middle.
        let full = fx.name("full");
        let small = Queue::classic(full.as_str()).max_length(2, acemq::Overflow::RejectPublish);
        fx.mq.declare(&Topology::new().queue(small)).await.unwrap();
        let report = fx.mq.replay(&dead_letters).to("", &full).run().await.unwrap();
        assert_eq!(report.moved(), 2);
        assert!(matches!(report.error(), Some(Error::Nacked { .. })), "{report:?}");
        assert_eq!(numbers(&fx, &dead_letters).await, [3, 4]);
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
    }

    async fn a_message_that_the_broker_dead_lettered_is_shown_and_replayed(fx) {
        let queue = fx.queue("orders").await;
        let dead_letters = format!("{queue}.dlq");
        let publisher = fx.mq.publisher::<u32>("", &queue).ttl(Duration::from_millis(1));
        let id = publisher.send(&7).await.unwrap();
        fx.until_length(&dead_letters, 1).await;
        let found = look(&fx, &dead_letters).await.remove(0);
        assert_eq!((found.id(), found.error(), found.attempt()), (id.as_str(), None, 1));
        let death = found.died().unwrap();
        assert_eq!((death.queue.as_str(), death.reason.as_str(), death.count), (queue.as_str(), "expired", 1));
        assert_eq!((death.exchange.as_str(), death.routing_keys), ("", vec![queue.clone()]));

        assert_eq!(fx.mq.replay(&dead_letters).run().await.unwrap().moved(), 1);
        // Without its TTL and without its history, which would make the broker drop it the next time.
        let again = look(&fx, &queue).await.remove(0);
        assert_eq!((again.id(), again.died()), (id.as_str(), None));
        assert_eq!(again.headers().iter().filter(|(name, _)| name.contains("death")).count(), 0);
    }

    async fn a_message_that_fails_again_is_not_replayed_twice(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 5).await;
        let consumer = fx.mq.consumer::<u32>(&queue)
            .start(|_| async { Err(HandlerError::reject("still broken")) }).await.unwrap();
        let report = soon("the end", fx.mq.replay(&dead_letters).run()).await.unwrap();
        // Whether the first one is back in time is a race; that none is moved twice is not.
        assert_eq!(report.moved(), 5);
        let ended = report.ended();
        assert!(matches!(ended, ReplayEnd::Drained | ReplayEnd::FailedAgain { .. }), "{report:?}");
        fx.until_length(&dead_letters, 5).await;
        consumer.close().await;
        for candidate in look(&fx, &dead_letters).await {
            assert_eq!(candidate.replayed().unwrap().count(), 1);
        }
    }

    async fn a_target_that_leads_back_ends_the_replay(fx) {
        let (_, dead_letters) = with_dead_letters(&fx, 3).await;
        let exchange = fx.name("exchange");
        fx.mq.declare(&Topology::new().exchange(Exchange::fanout(exchange.as_str()).auto_delete())
            .bind(dead_letters.as_str(), exchange.as_str(), "")).await.unwrap();
        let first = look(&fx, &dead_letters).await.remove(0);
        let report = soon("the end", fx.mq.replay(&dead_letters).to(&exchange, "").run()).await.unwrap();
        assert_eq!(report.moved(), 3);
        assert!(matches!(report.ended(), ReplayEnd::FailedAgain { id } if id == first.id()), "{report:?}");
        assert_eq!(numbers(&fx, &dead_letters).await, [1, 2, 3]);
        // Another replay at once, in the same second, is not confused by the stamps of the first.
        assert_eq!(fx.mq.replay(&dead_letters).run().await.unwrap().moved(), 3);
    }

    async fn a_dead_letter_of_an_idempotent_consumer_is_handled_when_it_is_replayed(fx) {
        let queue = fx.queue("orders").await;
        let dead_letters = format!("{queue}.dlq");
        let (store, broken) = (MemoryIdempotencyStore::new(), Arc::new(AtomicBool::new(true)));
        let consumer = {
            let broken = broken.clone();
            fx.mq.consumer::<u32>(&queue).idempotent(store.clone()).retry(RetryPolicy::none())
                .start(move |_| {
                    let broken = broken.load(Ordering::SeqCst);
                    async move { if broken { Err(HandlerError::retry("boom")) } else { Ok(()) } }
                }).await.unwrap()
        };
        fx.mq.publisher::<u32>("", &queue).send(&1).await.unwrap();
        fx.until_length(&dead_letters, 1).await;
        broken.store(false, Ordering::SeqCst);
        let report = fx.mq.replay(&dead_letters).releasing(store, &queue).run().await.unwrap();
        assert_eq!((report.moved(), report.already_done()), (1, 0));
        eventually("the handling", async || consumer.stats().acked == 1).await;
        assert_eq!(consumer.stats().duplicates, 0);
    }

    async fn a_message_that_was_handled_keeps_its_place_unless_it_should_be_handled_again(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 1).await;
        let store = MemoryIdempotencyStore::new();
        let id = look(&fx, &dead_letters).await[0].id().to_owned();
        let Claim::Claimed(token) = store.try_claim(&queue, &id).await.unwrap() else { panic!() };
        assert!(store.confirm(&queue, &id, token).await.unwrap());
        let consumer = fx.mq.consumer::<u32>(&queue).idempotent(store.clone())
            .start(|_| async { Ok(()) }).await.unwrap();

        let replay = || fx.mq.replay(&dead_letters).releasing(store.clone(), &queue);
        let report = replay().run().await.unwrap();
        assert_eq!((report.moved(), report.skipped(), report.already_done()), (0, 0, 1));
        assert!(report.is_drained());
        assert_eq!(numbers(&fx, &dead_letters).await, [1]);
        assert_eq!(store.try_claim(&queue, &id).await.unwrap(), Claim::AlreadyConfirmed);

        let report = replay().even_if_done().run().await.unwrap();
        assert_eq!((report.moved(), report.already_done()), (1, 0));
        eventually("the handling", async || consumer.stats().acked == 1).await;
        assert_eq!(consumer.stats().duplicates, 0);
    }

    async fn a_claim_that_nobody_confirmed_does_not_hold_a_replay_up(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 2).await;
        let candidates = look(&fx, &dead_letters).await;
        let store = MemoryIdempotencyStore::new().lease(Duration::from_millis(200));
        // A process that died over the first message, and one that is at work on the second.
        for candidate in &candidates {
            assert!(matches!(store.try_claim(&queue, candidate.id()).await.unwrap(), Claim::Claimed(_)));
        }
        let report = fx.mq.replay(&dead_letters).releasing(store.clone(), &queue).run().await.unwrap();
        assert_eq!((report.moved(), report.already_done()), (2, 0));
        let consumer = fx.mq.consumer::<u32>(&queue).idempotent(store)
            .start(|_| async { Ok(()) }).await.unwrap();
        eventually("both to be handled", async || consumer.stats().acked == 2).await;
        assert_eq!(consumer.stats().duplicates, 0);
    }

    async fn closing_the_handle_ends_a_replay_and_waits_for_it(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 3).await;
        let mq = fx.another().await;
        let (moved, first) = tokio::sync::oneshot::channel();
        let mut moved = Some(moved);
        let replay = mq.replay(&dead_letters).rate(0.000_001)
            .on_progress(move |_| if let Some(moved) = moved.take() { moved.send(()).unwrap(); });
        let running = tokio::spawn(replay.run());
        soon("the first move", first).await.unwrap();
        soon("the close", mq.close()).await;
        let report = running.await.unwrap().unwrap();
        assert!(matches!(report.ended(), ReplayEnd::Cancelled), "{report:?}");
        assert_eq!(report.moved(), 1);
        assert!(matches!(mq.replay(&dead_letters).run().await, Err(Error::Closed)));
        assert_eq!(numbers(&fx, &queue).await, [1]);
        assert_eq!(numbers(&fx, &dead_letters).await, [2, 3]);
    }

    async fn a_replay_that_is_dropped_at_any_point_loses_nothing(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 40).await;
        let all: HashSet<_> = look(&fx, &dead_letters).await.iter().map(|c| c.id().to_owned()).collect();
        for polls in 0..60 {
            let replay = fx.mq.replay(&dead_letters).limit(4).matching(|c| !c.body().ends_with(b"3"));
            let _ = PolledAtMost { polls, future: Box::pin(replay.run()) }.await;
            // What was held is back when the broker has closed the channel.
            eventually("all to be back", async || {
                let mut waiting = 0;
                for queue in [&queue, &dead_letters] {
                    waiting += fx.mq.queue_length(queue).await.unwrap().unwrap();
                }
                waiting >= 40
            }).await;
        }
        until_all_are_moved(&fx, &dead_letters, &queue, &all).await;
    }

    async fn two_replays_at_once_move_each_message_once(fx) {
        let (queue, dead_letters) = with_dead_letters(&fx, 60).await;
        let other = fx.another().await;
        let (one, two) = tokio::join!(
            fx.mq.replay(&dead_letters).run(),
            other.replay(&dead_letters).run(),
        );
        assert_eq!(one.unwrap().moved() + two.unwrap().moved(), 60);
        let mut moved = numbers(&fx, &queue).await;
        moved.sort_unstable();
        assert_eq!(moved, (1..=60).collect::<Vec<u32>>());
    }

    async fn tools_of_other_stacks_can_read_a_set_aside_message(fx) {
        let queue = fx.queue("orders").await;
        let exchange = fx.name("exchange");
        fx.mq.declare(&Topology::new().exchange(Exchange::topic(exchange.as_str()).auto_delete())
            .bind(queue.as_str(), exchange.as_str(), "order.*")).await.unwrap();
        let consumer = fx.mq.consumer::<String>(&queue).exception_headers()
            .retry(RetryPolicy::fixed(2, Duration::ZERO))
            .start(|m: Message<String>| async move {
                match m.payload().as_str() {
                    "reject" => Err(HandlerError::reject("never")),
                    "park" => Err(HandlerError::park("look")),
                    "panic" => panic!("out of bounds"),
                    _ => Err(HandlerError::retry("boom".repeat(100_000))),
                }
            }).await.unwrap();
        let publisher = fx.mq.publisher::<String>(&exchange, "order.placed");
        for (word, target, kind, text) in [
            ("reject", "dlq", "rejected", "the handler rejected it: never"),
            ("park", "parked", "parked", "the handler parked it: look"),
            ("panic", "dlq", "panicked", "the handler reported an unprocessable message: the handler panicked"),
            ("retry", "dlq", "exhausted", "exhausted 2 attempts: boom"),
        ] {
            // Headers that leave little room, and none.
            for (size, readable) in [(0, true), (120 * 1024, true), (127 * 1024 + 512, false)] {
                let envelope = Envelope::new().header("large", "x".repeat(size));
                publisher.send_with(&word.to_owned(), envelope).await.unwrap();
                let mut aside = Inbox::of(&fx.mq, &format!("{queue}.{target}")).await;
                let message = aside.next().await;
                let header = |name: &str| message.headers().text(name).map(str::to_owned);
                let error = message.envelope().error().unwrap_or_default();
                if !readable {
                    assert_eq!(header("x-exception-type"), None, "{word} {size}");
                    continue;
                }
                assert_eq!(header("x-exception-type").as_deref(), Some(kind));
                assert_eq!(header("x-exception-message").as_deref(), Some(error));
                assert!(error.starts_with(text) && error.len() <= 8192, "{error:.99}");
                assert_eq!(header("x-original-exchange").as_deref(), Some(exchange.as_str()));
                assert_eq!(header("x-original-routing-key").as_deref(), Some("order.placed"));
            }
        }
        drop(consumer);
    }
}

/// Replays the rest until each message is in the queue. Where there are two of one, another may
/// still be on its way back from an interrupted pass.
async fn until_all_are_moved(fx: &Fixture, dead_letters: &str, queue: &str, all: &HashSet<String>) {
    eventually("every message to be moved", async || {
        let report = fx.mq.replay(dead_letters).run().await.unwrap();
        assert!(report.is_drained(), "{report:?}");
        let moved = look(fx, queue).await;
        moved.iter().map(|c| c.id().to_owned()).collect::<HashSet<_>>() == *all
    })
    .await;
}

/// Polls a future at most so often, and then drops it.
struct PolledAtMost<F> {
    polls: usize,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for PolledAtMost<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_over_a_connection_that_is_cut_loses_nothing() {
    let fx = Fixture::on(Broker::RabbitMq).await;
    let (queue, dead_letters) = with_dead_letters(&fx, 60).await;
    let all: HashSet<_> =
        look(&fx, &dead_letters).await.iter().map(|c| c.id().to_owned()).collect();
    let target = fx.url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let proxy = Proxy::to(&target).await;
    let url = fx.url.replace(&target, &format!("127.0.0.1:{}", proxy.port()));
    let options = acemq::AceMq::options(url).reconnect_cap(Duration::from_millis(100));
    let mq = options.connect().await.unwrap();
    let mut failures = 0;
    for cut_at in 0..10 {
        let (proxy, mut looked_at) = (proxy.clone(), 0);
        let report = mq
            .replay(&dead_letters)
            .limit(5)
            .matching(|c| !c.body().ends_with(b"3"))
            .on_progress(move |_| {
                looked_at += 1;
                if looked_at == cut_at {
                    proxy.cut();
                }
            })
            .run();
        match soon("the report", report).await {
            Ok(report) => failures += u32::from(report.error().is_some()),
            // The link of the last round is found broken only now.
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        eventually("all to be back", async || {
            let waiting = fx.mq.queue_length(&dead_letters).await.unwrap().unwrap();
            waiting + fx.mq.queue_length(&queue).await.unwrap().unwrap() >= 60
        })
        .await;
    }
    assert!(failures >= 3, "only {failures} passes failed");
    until_all_are_moved(&fx, &dead_letters, &queue, &all).await;
    mq.close().await;
    fx.clean_up().await;
}
