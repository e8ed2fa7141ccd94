//! Scheduled messages arrive, whole and once.

use std::time::Duration;

use acemq::{Envelope, Error, HeaderValue, Ladder, Scheduler};
use bytes::Bytes;
use chrono::{TimeDelta, Utc};

use crate::{
    Arrivals, prefix,
    support::{Fixture, eventually},
};

async fn scheduler(fx: &Fixture) -> Scheduler {
    fx.mq.scheduler().prefix(prefix(fx)).await.unwrap()
}

on_both_brokers! {
    async fn a_message_arrives_after_its_delay_with_everything_it_had(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let scheduler = scheduler(&fx).await;
        let envelope = Envelope::of("basket.abandoned")
            .correlation("basket-7")
            .caused_by("visit-3")
            .version(4)
            .header("x-tenant", "acme");
        let (id, started) = (envelope.id().to_owned(), Utc::now());
        let delay = Duration::from_millis(2100);
        let scheduled = scheduler.after_with(delay, "", &queue, &7, envelope).await.unwrap();
        assert_eq!(scheduled, id);

        let (at, message) = arrivals.next().await;
        let after = at - started;
        assert!(after > TimeDelta::milliseconds(1100), "more than a second early: {after}");
        assert_eq!(message.id(), id);
        assert_eq!(message.body(), "7");
        assert_eq!(message.content_type(), Some("application/json"));
        assert_eq!(message.attempt(), 1);
        let envelope = message.envelope();
        assert_eq!(envelope.message_type(), "basket.abandoned");
        assert_eq!(envelope.correlation_id(), "basket-7");
        assert_eq!(envelope.causation_id(), Some("visit-3"));
        assert_eq!(envelope.schema_version(), 4);
        let first_seen = envelope.first_seen_at().unwrap();
        assert!(first_seen >= started + TimeDelta::milliseconds(2099), "its age begins when it is due");
        assert_eq!(message.headers().get("x-tenant").and_then(HeaderValue::as_str), Some("acme"));
        assert_eq!(message.headers().len(), 1, "{:?}", message.headers());
        eventually("the counts", async || scheduler.stats().delivered == 1).await;
        let stats = scheduler.stats();
        assert_eq!((stats.scheduled, stats.hops, stats.failed), (1, 2, 0));
        assert_eq!(scheduler.hops(), 2);
    }

    async fn the_past_is_now(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let scheduler = scheduler(&fx).await;
        for past in [TimeDelta::zero(), TimeDelta::milliseconds(1), TimeDelta::days(400_000)] {
            scheduler.at(Utc::now() - past, "", &queue, &past.num_days()).await.unwrap();
            let (_, message) = arrivals.next().await;
            assert_eq!(message.body(), past.num_days().to_string().as_str());
        }
        scheduler.after(Duration::ZERO, "", &queue, &1).await.unwrap();
        arrivals.next().await;
        let stats = scheduler.stats();
        assert_eq!((stats.scheduled, stats.hops, stats.delivered), (4, 0, 4));
    }

    async fn absurd_times_and_names_are_refused_and_nothing_is_sent(fx) {
        let queue = fx.queue("target").await;
        let scheduler = scheduler(&fx).await;
        let long = "x".repeat(256);
        let hour = Duration::from_secs(3600);
        let refused = [
            ("delay", scheduler.after(Duration::MAX, "", &queue, &1).await),
            ("delay", scheduler.after(Duration::from_millis(u64::MAX), "", &queue, &1).await),
            ("due", scheduler.at(chrono::DateTime::<Utc>::MAX_UTC, "", &queue, &1).await),
            ("exchange", scheduler.after(hour, &long, "k", &1).await),
            ("routing_key", scheduler.after(hour, "", &long, &1).await),
            (
                "header",
                scheduler
                    .after_with(hour, "", &queue, &1, Envelope::new().header("x-acemq-id", "forged"))
                    .await,
            ),
        ];
        for (option, result) in refused {
            match result {
                Err(Error::InvalidOption { option: named, .. }) => assert_eq!(named, option),
                other => panic!("{option}: {other:?}"),
            }
        }
        for prefix in ["", &long] {
            let refused = fx.mq.scheduler().prefix(prefix).await;
            assert!(matches!(refused, Err(Error::InvalidOption { .. })), "{refused:?}");
        }
        assert_eq!(scheduler.stats().scheduled, 0);
    }

    async fn bytes_of_any_kind_keep_their_content_type(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let scheduler = scheduler(&fx).await;
        let body = Bytes::from_static(b"\x00\xff\xfe");
        for due in [Utc::now(), Utc::now() + TimeDelta::milliseconds(1500)] {
            let content = ("application/x-thing", body.clone());
            scheduler.at_raw(due, "", &queue, content, Envelope::new()).await.unwrap();
            let (_, message) = arrivals.next().await;
            assert_eq!(message.body(), &body);
            assert_eq!(message.content_type(), Some("application/x-thing"));
            assert_eq!(message.envelope().message_type(), queue);
        }
    }

    async fn two_schedulers_share_the_work_and_each_message_comes_once(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let prefix = prefix(&fx);
        let other = fx.another().await;
        let first = fx.mq.scheduler().prefix(prefix.as_str()).await.unwrap();
        let second = other.scheduler().prefix(prefix.as_str()).await.unwrap();
        for number in 0..100_u64 {
            let delay = Duration::from_millis(1000 + 13 * number);
            first.after(delay, "", &queue, &number).await.unwrap();
        }
        let bodies = arrivals.bodies(100).await;
        eventually("the counts", async || {
            first.stats().delivered + second.stats().delivered == 100
        })
        .await;
        assert!(bodies.values().all(|times| *times == 1), "{bodies:?}");
        assert!(first.stats().delivered > 0 && second.stats().delivered > 0);
        let _ = other.close().await;
    }

    async fn one_that_only_schedules_leaves_delivery_to_others(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let prefix = prefix(&fx);
        let quiet = fx.mq.scheduler().prefix(prefix.as_str()).without_delivery().await.unwrap();
        quiet.after(Duration::from_secs(1), "", &queue, &1).await.unwrap();
        fx.until_length(&quiet.control_queue(), 1).await;
        assert!(quiet.consumer().is_none());
        let busy = fx.mq.scheduler().prefix(prefix.as_str()).await.unwrap();
        arrivals.next().await;
        eventually("the count", async || busy.stats().delivered == 1).await;
        assert!(quiet.close().await.is_none());
    }

    async fn the_binary_ladder_is_never_early(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        // One for all runs: an exchange cannot be taken away again.
        let scheduler =
            fx.mq.scheduler().ladder(Ladder::Binary).prefix("t.acemq.delay").await.unwrap();
        let started = Utc::now();
        for ms in [3100_u64, 100, 1900] {
            scheduler.after(Duration::from_millis(ms), "", &queue, &ms).await.unwrap();
        }
        for ms in [100, 1900, 3100_i64] {
            let (at, message) = arrivals.next().await;
            assert_eq!(message.body(), ms.to_string().as_str());
            assert!(at - started >= TimeDelta::milliseconds(ms), "{ms} ms came after {}", at - started);
            assert_eq!(message.headers().len(), 0, "{:?}", message.headers());
        }
    }
}
