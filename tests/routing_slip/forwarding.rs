//! Messages that follow their slips.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{
    Envelope, Error, Forward, HandlerError, HeaderValue, Itinerary, Message, ResultExt,
    RetryPolicy, SlipStop,
};

use crate::{
    submit,
    support::{Broker, Fixture, Inbox, eventually},
};

/// A stop that adds a number.
async fn adding(fx: &Fixture, queue: &str, number: u64) -> SlipStop {
    fx.mq
        .stop(queue, move |message: Message<u64>| async move {
            Forward::json(&(message.payload() + number)).reject()
        })
        .await
        .unwrap()
}

on_both_brokers! {
    async fn a_message_goes_from_stop_to_stop_and_is_stamped_at_each(fx) {
        let (first, second, last) = (fx.queue("a").await, fx.queue("b").await, fx.queue("c").await);
        let (one, two) = (adding(&fx, &first, 1).await, adding(&fx, &second, 10).await);
        let route = Itinerary::new()
            .then_named("one", "", first.as_str())
            .then("", second.as_str())
            .then("", last.as_str());
        let envelope = Envelope::of("policy").correlation("policy-7").header("x-tenant", "acme");
        let id = submit(&fx, &route, 100, envelope).await;
        let mut inbox = Inbox::of(&fx.mq, &last).await;
        let message = inbox.next().await;
        assert_eq!(message.body(), "111");
        assert_eq!(message.envelope().correlation_id(), "policy-7");
        assert_ne!(message.id(), id);
        assert!(message.headers().get("x-tenant").is_some());
        let slip = Itinerary::from(message.headers()).unwrap().unwrap();
        let done: Vec<String> = slip.done().iter().map(ToString::to_string).collect();
        assert_eq!(done, ["one".to_owned(), format!("/{second}")]);
        assert!(slip.done().iter().all(|stop| stop.completed_at().is_some()));
        eventually("the hops to be counted", async || {
            (one.stats().forwarded, two.stats().forwarded) == (1, 1)
        })
        .await;
    }

    async fn the_last_stop_completes_the_route(fx) {
        let queue = fx.queue("only").await;
        let stop = adding(&fx, &queue, 1).await;
        submit(&fx, &Itinerary::new().then("", queue.as_str()), 1, Envelope::new()).await;
        eventually("the end", async || stop.stats().completed == 1).await;
        fx.until_length(&queue, 0).await;
    }

    async fn a_stop_may_add_skip_and_replace_the_stops_that_remain(fx) {
        let (gate, audit, skipped, last) =
            (fx.queue("gate").await, fx.queue("audit").await, fx.queue("skipped").await, fx.queue("last").await);
        let (to_audit, to_skip, to_last) = (audit.clone(), skipped.clone(), last.clone());
        let _gate = fx
            .mq
            .stop(gate.as_str(), move |message: Message<u64>| {
                let (audit, skipped, last) = (to_audit.clone(), to_skip.clone(), to_last.clone());
                async move {
                    Ok(match message.payload() {
                        1 => Forward::unchanged().revise(|route| route.insert_next("", audit)),
                        2 => Forward::unchanged()
                            .revise(move |route| route.keep(|stop| stop.routing_key() != skipped)),
                        3 => Forward::unchanged().revise(move |route| {
                            route.replace_remaining(&Itinerary::new().then("", last))
                        }),
                        4 => Forward::end(),
                        _ => Forward::unchanged().revise(|_| Itinerary::new()),
                    })
                }
            })
            .await
            .unwrap();
        let _audit = adding(&fx, &audit, 100).await;
        let _skipped = adding(&fx, &skipped, 1000).await;
        let route = Itinerary::new()
            .then("", gate.as_str())
            .then("", skipped.as_str())
            .then("", last.as_str());
        let mut inbox = Inbox::of(&fx.mq, &last).await;
        for (payload, result) in [(1, "1101"), (2, "2"), (3, "3"), (4, ""), (6, "")] {
            submit(&fx, &route, payload, Envelope::new()).await;
            if !result.is_empty() {
                assert_eq!(inbox.next().await.body(), result);
            }
        }
        // The one that threw away what was done is refused; the one that ended is not.
        fx.until_length(&format!("{gate}.dlq"), 1).await;
    }

    async fn what_carries_no_good_slip_is_dead_lettered_with_the_reason(fx) {
        let queue = fx.queue("stop").await;
        let handled = Arc::new(AtomicUsize::new(0));
        let handler = Arc::clone(&handled);
        let stop = fx.mq.stop(queue.as_str(), move |_: Message<u64>| {
            handler.fetch_add(1, Ordering::SeqCst);
            async { Ok(Forward::unchanged()) }
        });
        let stop = stop.await.unwrap();
        let publisher = fx.mq.publisher::<u64>("", queue.as_str());
        let malformed = ["{", "[]", "7", r#"{"steps":7}"#, r#"{"steps":[{"exchange":7}]}"#];
        for text in malformed {
            let envelope = Envelope::new().header(Itinerary::HEADER, text);
            publisher.send_with(&1, envelope).await.unwrap();
        }
        publisher.send(&1).await.unwrap();
        let dead = format!("{queue}.dlq");
        fx.until_length(&dead, malformed.len() as u64 + 1).await;
        assert_eq!(stop.consumer().stats().retried, 0);
        let mut inbox = Inbox::of(&fx.mq, &dead).await;
        let mut reasons = Vec::new();
        for _ in 0..=malformed.len() {
            reasons.push(inbox.next().await.envelope().error().unwrap_or_default().to_owned());
        }
        assert!(reasons.iter().any(|reason| reason.contains("no itinerary")), "{reasons:?}");
        assert_eq!(handled.load(Ordering::SeqCst), 0, "nothing is done for what can go nowhere");
        // A route that is done is complete, whoever gets it.
        let finished = Envelope::new().header(Itinerary::HEADER, Itinerary::new().to_header());
        publisher.send_with(&1, finished).await.unwrap();
        eventually("the end", async || stop.stats().completed == 1).await;
    }

    async fn a_route_in_circles_ends_at_the_hop_limit(fx) {
        let queue = fx.queue("circle").await;
        let back = queue.clone();
        let stop = fx
            .mq
            .slip_stop::<u64>(queue.as_str())
            .hop_limit(20)
            .start(move |_: Message<u64>| {
                let back = back.clone();
                async move { Ok(Forward::unchanged().revise(|route| route.then("", back))) }
            })
            .await
            .unwrap();
        submit(&fx, &Itinerary::new().then("", queue.as_str()), 1, Envelope::new()).await;
        let dead = format!("{queue}.dlq");
        fx.until_length(&dead, 1).await;
        eventually("the count", async || stop.stats().forwarded == 19).await;
        let message = Inbox::of(&fx.mq, &dead).await.next().await;
        let slip = Itinerary::from(message.headers()).unwrap().unwrap();
        assert_eq!(slip.done().len(), 19);
        assert!(message.envelope().error().unwrap().contains("20 hops"));
    }

    async fn a_route_may_come_to_a_stop_again_within_the_limit(fx) {
        let (a, b, end) = (fx.queue("a").await, fx.queue("b").await, fx.queue("end").await);
        let store = acemq::MemoryIdempotencyStore::new();
        let mut stops = Vec::new();
        for queue in [&a, &b] {
            let stop = fx.mq.slip_stop::<u64>(queue.as_str()).idempotent(store.clone());
            let add = |n: Message<u64>| async move { Forward::json(&(n.payload() + 1)).reject() };
            stops.push(stop.start(add).await.unwrap());
        }
        // There and back again, and twice in a row: no visit is taken for a repetition.
        let mut route = Itinerary::new();
        for queue in [&a, &b, &a, &a, &b, &end] {
            route = route.then("", queue.as_str());
        }
        submit(&fx, &route, 0, Envelope::new()).await;
        assert_eq!(Inbox::of(&fx.mq, &end).await.next().await.body(), "5");
        eventually("the hops to be counted", async || {
            (stops[0].stats().forwarded, stops[1].stats().forwarded) == (3, 2)
        })
        .await;
    }

    async fn a_missing_stop_at_every_position_loses_nothing(fx) {
        for missing in 1..3 {
            let mut route = Itinerary::new();
            let (mut names, mut stops) = (Vec::new(), Vec::new());
            for position in 0..3 {
                let queue = if position == missing {
                    fx.name("missing")
                } else {
                    fx.queue(&format!("stop{position}")).await
                };
                route = route.then("", queue.as_str());
                names.push(queue);
            }
            let policy = || RetryPolicy::fixed(2, Duration::from_millis(1));
            let pass = |_: Message<u64>| async { Ok::<_, HandlerError>(Forward::unchanged()) };
            for queue in names.iter().filter(|queue| **queue != names[missing]) {
                let stop = fx.mq.slip_stop::<u64>(queue.as_str()).retry(policy());
                stops.push(stop.start(pass).await.unwrap());
            }
            submit(&fx, &route, 1, Envelope::new()).await;
            let dead = format!("{}.dlq", names[missing - 1]);
            fx.until_length(&dead, 1).await;
            // Once the stop is there, the message goes on from where it stood.
            let queue = acemq::Queue::new(names[missing].as_str());
            fx.mq.declare(&acemq::Topology::new().queue(queue)).await.unwrap();
            let late = fx.mq.slip_stop::<u64>(names[missing].as_str()).start(pass).await.unwrap();
            assert_eq!(fx.mq.replay(dead).run().await.unwrap().moved(), 1);
            let last = if missing == 2 { &late } else { &stops[1] };
            eventually("the end of the route", async || last.stats().completed == 1).await;
        }
    }

    async fn malformed_slips_between_good_ones_stop_none_of_these(fx) {
        let (queue, end) = (fx.queue("stop").await, fx.queue("end").await);
        let stop = adding(&fx, &queue, 1).await;
        let publisher = fx.mq.publisher::<u64>("", queue.as_str());
        let good = || Itinerary::new().then("", queue.as_str()).then("", end.as_str());
        let long = "x".repeat(300);
        let malformed: [HeaderValue; 15] = [
            "{".into(),
            "[]".into(),
            "7".into(),
            "true".into(),
            "\u{0}".into(),
            r#""text""#.into(),
            r#"{"steps":7}"#.into(),
            r#"{"steps":{}}"#.into(),
            r#"{"steps":["a"]}"#.into(),
            r#"{"steps":[null]}"#.into(),
            r#"{"steps":[{"exchange":7}]}"#.into(),
            r#"{"steps":[{"routingKey":[]}]}"#.into(),
            r#"{"steps":[],"done":7}"#.into(),
            format!(r#"{{"steps":[{{}},{{"routingKey":"{long}"}}]}}"#).into(),
            HeaderValue::List(vec![HeaderValue::from(1)]),
        ];
        let bad = malformed.len() as u64;
        for slip in malformed {
            let envelope = Envelope::new().header(Itinerary::HEADER, slip);
            publisher.send_with(&1, envelope).await.unwrap();
            submit(&fx, &good(), 1, Envelope::new()).await;
        }
        fx.until_length(&end, bad).await;
        // A name that is too long is only tried: it is no matter of the slip's form.
        fx.until_length(&format!("{queue}.dlq"), bad).await;
        eventually("the hops to be counted", async || stop.stats().forwarded == bad).await;
    }

    async fn a_slip_grows_by_its_stops_only_and_is_refused_above_the_limit(fx) {
        let queue = fx.queue("long").await;
        let stop = fx
            .mq
            .slip_stop::<u64>(queue.as_str())
            .hop_limit(2000)
            .size_limit(200_000)
            .start(|_: Message<u64>| async { Ok(Forward::unchanged()) })
            .await
            .unwrap();
        let mut route = Itinerary::new();
        for _ in 0..300 {
            route = route.then("", queue.as_str());
        }
        submit(&fx, &route, 1, Envelope::new()).await;
        eventually("the end", async || stop.stats().completed == 1).await;
        eventually("the count", async || stop.stats().forwarded == 299).await;
        stop.close().await;

        let strict = fx
            .mq
            .slip_stop::<u64>(queue.as_str())
            .size_limit(1000)
            .start(|_: Message<u64>| async { Ok(Forward::unchanged()) })
            .await
            .unwrap();
        submit(&fx, &route, 1, Envelope::new()).await;
        fx.until_length(&format!("{queue}.dlq"), 1).await;
        assert_eq!(strict.stats().forwarded, 0);
    }

    async fn a_missing_stop_keeps_the_message_until_its_policy_ends(fx) {
        let (queue, missing) = (fx.queue("stop").await, fx.name("missing"));
        let stop = fx
            .mq
            .slip_stop::<u64>(queue.as_str())
            .retry(RetryPolicy::fixed(3, Duration::from_millis(1)))
            .start(|_: Message<u64>| async { Ok(Forward::unchanged()) })
            .await
            .unwrap();
        let route = Itinerary::new().then("", queue.as_str()).then("", missing.as_str());
        submit(&fx, &route, 1, Envelope::new()).await;
        fx.until_length(&format!("{queue}.dlq"), 1).await;
        eventually("the retries to be counted", async || stop.consumer().stats().retried == 2)
            .await;
        // It resumes where it stood.
        fx.mq.declare(&acemq::Topology::new().queue(acemq::Queue::new(missing.as_str()))).await.unwrap();
        let report = fx.mq.replay(format!("{queue}.dlq")).run().await.unwrap();
        assert_eq!(report.moved(), 1);
        fx.until_length(&missing, 1).await;
    }

    async fn the_manual_form_needs_no_stop(fx) {
        let (queue, next) = (fx.queue("manual").await, fx.queue("next").await);
        let mq = fx.mq.clone();
        let _consumer = fx
            .mq
            .consumer::<u64>(queue.as_str())
            .start(move |message: Message<u64>| {
                let mq = mq.clone();
                async move {
                    let route = Itinerary::from(message.headers()).reject()?.unwrap_or_default();
                    let remaining = route.advance(chrono::Utc::now());
                    if let Some(stop) = remaining.next() {
                        let envelope = message
                            .envelope()
                            .causing("policy.underwritten")
                            .header(Itinerary::HEADER, remaining.to_header());
                        mq.publisher::<u64>(stop.exchange(), stop.routing_key())
                            .send_with(message.payload(), envelope)
                            .await?;
                    }
                    Ok(())
                }
            })
            .await
            .unwrap();
        let route = Itinerary::new().then("", queue.as_str()).then("", next.as_str());
        submit(&fx, &route, 7, Envelope::new()).await;
        let message = Inbox::of(&fx.mq, &next).await.next().await;
        assert_eq!(message.envelope().message_type(), "policy.underwritten");
    }
}

#[tokio::test]
async fn limits_that_let_nothing_through_are_refused() {
    let fx = Fixture::on(Broker::Memory).await;
    let queue = fx.queue("stop").await;
    let pass = |_: Message<u64>| async { Ok::<_, HandlerError>(Forward::unchanged()) };
    for builder in [
        fx.mq.slip_stop::<u64>(queue.as_str()).hop_limit(0),
        fx.mq.slip_stop::<u64>(queue.as_str()).size_limit(0),
    ] {
        assert!(matches!(builder.start(pass).await, Err(Error::InvalidOption { .. })));
    }
}
