//! Messages and targets that are not what they should be: each fails alone, with the reason.

use std::time::Duration;

use acemq::Envelope;

use crate::{Arrivals, prefix, support::eventually};

on_both_brokers! {
    async fn a_target_that_does_not_exist_is_dead_lettered_with_the_reason_and_holds_nothing_up(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let (nowhere, prefix) = (fx.name("nowhere"), prefix(&fx));
        let scheduler = fx.mq.scheduler().prefix(prefix.as_str()).await.unwrap();
        let second = Duration::from_millis(1000);
        let lost = scheduler.after(second, "", &nowhere, &1).await.unwrap();
        scheduler.after(second, &nowhere, "no-exchange", &2).await.unwrap();
        for number in 0..20 {
            scheduler.after(second, "", &queue, &number).await.unwrap();
        }
        arrivals.bodies(20).await;
        let dead = format!("{prefix}.due.dlq");
        fx.until_length(&dead, 2).await;
        eventually("the counts", async || {
            let stats = scheduler.stats();
            (stats.delivered, stats.failed) == (20, 2)
        })
        .await;

        let mut set_aside = Arrivals::at(&fx.mq, &dead).await;
        let mut found = [set_aside.next().await.1, set_aside.next().await.1];
        found.sort_by_key(|message| message.body().clone());
        assert_eq!(found[0].id(), lost);
        for (message, word) in found.iter().zip(["no queue", "exchange"]) {
            let reason = message.envelope().error().unwrap_or_default();
            assert!(reason.contains("cannot be delivered") && reason.contains(word), "{reason}");
        }
    }

    async fn what_is_no_scheduled_message_is_dead_lettered_and_the_others_go_on(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let prefix = prefix(&fx);
        let scheduler = fx.mq.scheduler().prefix(prefix.as_str()).await.unwrap();
        let control = fx.mq.publisher::<u32>("", scheduler.control_queue());
        let labelled = |due: acemq::HeaderValue| {
            Envelope::of("x")
                .header("x-schedule-exchange", "")
                .header("x-schedule-routing-key", queue.as_str())
                .header("x-schedule-due-at", due)
        };
        let malformed = [
            Envelope::of("x"),
            labelled(acemq::HeaderValue::Null),
            labelled("soon".into()),
            labelled(true.into()),
            labelled(1.5.into()),
            labelled(1.into()).header("x-schedule-exchange", 7),
            labelled(1.into()).without_header("x-schedule-routing-key"),
        ];
        let wrong = malformed.len() as u64;
        for envelope in malformed {
            control.send_with(&0, envelope).await.unwrap();
        }
        // Numbers as text, and times at both ends of what an integer holds.
        for due in ["1790000000000".into(), i64::MIN.into(), (-1).into()] {
            control.send_with(&1, labelled(due)).await.unwrap();
            assert_eq!(arrivals.next().await.1.body(), "1");
        }
        fx.until_length(&format!("{prefix}.due.dlq"), wrong).await;
        // A peer's absurd date waits on the longest rung, and harms nobody.
        control.send_with(&2, labelled(i64::MAX.into())).await.unwrap();
        fx.until_length(&format!("{prefix}.1h"), 1).await;
        eventually("the counts", async || {
            let stats = scheduler.stats();
            (stats.failed, stats.delivered) == (wrong, 3)
        })
        .await;
    }

    async fn a_rung_deleted_by_hand_is_declared_again(fx) {
        let queue = fx.queue("target").await;
        let mut arrivals = Arrivals::at(&fx.mq, &queue).await;
        let prefix = prefix(&fx);
        let scheduler = fx.mq.scheduler().prefix(prefix.as_str()).await.unwrap();
        // By another handle: what a handle deletes itself it does not declare again.
        let hand = fx.another().await;
        hand.delete_queue(&format!("{prefix}.1s")).await.unwrap();
        // Once where a message enters, once where one is sent on.
        scheduler.after(Duration::from_millis(1000), "", &queue, &1).await.unwrap();
        arrivals.next().await;
        scheduler.after(Duration::from_millis(10_000), "", &queue, &2).await.unwrap();
        hand.delete_queue(&format!("{prefix}.10m")).await.unwrap();
        let control = fx.mq.publisher::<u32>("", scheduler.control_queue());
        let due = chrono::Utc::now() + chrono::TimeDelta::minutes(11);
        let labelled = Envelope::of("x")
            .header("x-schedule-exchange", "")
            .header("x-schedule-routing-key", queue.as_str())
            .header("x-schedule-due-at", due.timestamp_millis());
        control.send_with(&3, labelled).await.unwrap();
        fx.until_length(&format!("{prefix}.10m"), 1).await;
        // The control queue itself comes back with its consumer.
        hand.delete_queue(&scheduler.control_queue()).await.unwrap();
        eventually("the control queue", async || {
            fx.mq.queue_length(&scheduler.control_queue()).await.unwrap().is_some()
        })
        .await;
        scheduler.after(Duration::from_millis(1000), "", &queue, &4).await.unwrap();
        assert_eq!(arrivals.next().await.1.body(), "4");
    }
}
