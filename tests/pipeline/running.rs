//! Runs from their start to their end, and what is counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use acemq::{
    Envelope, Error, HandlerError, MemoryIdempotencyStore, Message, ResultExt, RetryPolicy,
    StepOptions, TextCodec,
};

use crate::{
    STEPS, built, name, next,
    support::{Broker, Fixture, eventually, soon},
    three,
};

on_both_brokers! {
    async fn a_run_goes_through_every_step_and_keeps_what_belongs_to_it(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let pipeline = built(builder).await;
        let envelope = Envelope::of("order.placed").correlation("order-7").header("x-tenant", "acme");
        let entered = envelope.id().to_owned();
        let run = pipeline.send_with(&20, envelope).await.unwrap();
        let (result, message) = next(&mut told).await;
        assert_eq!(result, 41);
        let envelope = message.envelope();
        assert_eq!(envelope.correlation_id(), "order-7");
        assert_eq!(envelope.message_type(), "order.placed");
        assert_eq!(message.headers().get("x-tenant").and_then(acemq::HeaderValue::as_str), Some("acme"));
        assert_eq!(message.attempt(), 1);
        assert_ne!(message.id(), entered);
        let route = envelope.route().unwrap();
        assert_eq!((route.run_id(), route.current()), (run.as_str(), Some("tell")));
        eventually("the end to be counted", async || pipeline.completed() == 1).await;
        assert_eq!(pipeline.entered(), 1);
        assert_eq!(pipeline.queue_for("add").as_deref(), Some(format!("{name}.add").as_str()));
        assert_eq!(pipeline.queue_for("nowhere"), None);
        assert_eq!(pipeline.steps(), STEPS);
        eventually("the acknowledgement to be counted", async || {
            pipeline.step("add").unwrap().stats().acked == 1
        })
        .await;
        assert!(soon("the close", pipeline.close()).await.is_complete());
    }

    async fn ends_and_failures_are_counted_where_they_happen(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let pipeline = built(builder).await;
        for number in [1, 2, 3, 13, 4] {
            pipeline.send(&number).await.unwrap();
        }
        let mut results = [next(&mut told).await.0, next(&mut told).await.0];
        results.sort_unstable();
        assert_eq!(results, [5, 9]);
        eventually("everything to be counted", async || {
            let stats = pipeline.stats();
            (stats.completed, stats.ended_early, stats.failed) == (2, 2, 1)
        })
        .await;
        assert_eq!((pipeline.entered(), pipeline.ended_early(), pipeline.failed()), (5, 2, 1));
        fx.until_length(&format!("{name}.double.dlq"), 1).await;
        eventually("every handler to end", async || pipeline.in_flight() == 0).await;
    }

    async fn a_step_retries_by_itself_and_sends_on_once(fx) {
        let name = name(&fx, &["first", "flaky", "last"]);
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let count = |at: &'static str| {
            let tell = tell.clone();
            move |n: Message<u64>| {
                let tell = tell.clone();
                async move {
                    tell.send((at, n.attempt())).map_err(HandlerError::retry)?;
                    let again = at == "flaky" && n.attempt() < 3;
                    if again { Err(HandlerError::retry("not yet")) } else { Ok(Some(*n.payload())) }
                }
            }
        };
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .step("first", count("first"))
                .step("flaky", count("flaky"))
                .step("last", count("last"))
                .for_step("flaky", StepOptions::new().retry(RetryPolicy::fixed(3, Duration::from_millis(1)))),
        )
        .await;
        pipeline.send(&7).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 5 {
            seen.push(soon("a step", told.recv()).await.unwrap());
        }
        assert_eq!(seen, [("first", 1), ("flaky", 1), ("flaky", 2), ("flaky", 3), ("last", 1)]);
    }

    async fn a_dead_letter_resumes_at_its_step_when_it_is_replayed(fx) {
        let name = name(&fx, &["first", "broken", "last"]);
        let mended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let (is_mended, first) = (mended.clone(), tell.clone());
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .step("first", move |n: Message<u64>| {
                    let first = first.clone();
                    async move {
                        first.send(("first", 0)).map_err(HandlerError::retry)?;
                        Ok(Some(*n.payload()))
                    }
                })
                .step("broken", move |n: Message<u64>| {
                    let mended = is_mended.load(std::sync::atomic::Ordering::Relaxed);
                    async move {
                        if mended { Ok(Some(n.payload() + 1)) } else { Err("broken").reject() }
                    }
                })
                .step("last", move |n: Message<u64>| {
                    let tell = tell.clone();
                    async move {
                        tell.send(("last", *n.payload())).map_err(HandlerError::retry)?;
                        Ok(None::<()>)
                    }
                }),
        )
        .await;
        pipeline.send(&7).await.unwrap();
        let dead = format!("{name}.broken.dlq");
        fx.until_length(&dead, 1).await;
        mended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(fx.mq.replay(dead).run().await.unwrap().moved(), 1);
        assert_eq!(soon("the first", told.recv()).await, Some(("first", 0)));
        assert_eq!(soon("the last", told.recv()).await, Some(("last", 8)));
        assert!(told.try_recv().is_err(), "the first step ran once");
    }

    async fn steps_run_in_several_processes_under_one_definition(fx) {
        let name = name(&fx, &STEPS);
        let (others, more) = (fx.another().await, fx.another().await);
        let sending = built(three(&fx.mq, &name).0.only(Vec::<String>::new())).await;
        let first = built(three(&others, &name).0.only(["double"])).await;
        let (builder, mut told) = three(&more, &name);
        let rest = built(builder.only(["add", "tell"])).await;
        for number in 0..20 {
            sending.send(&(2 * number)).await.unwrap();
        }
        let mut results = Vec::new();
        while results.len() < 20 {
            results.push(next(&mut told).await.0);
        }
        results.sort_unstable();
        assert_eq!(results, (0..20).map(|n| 4 * n + 1).collect::<Vec<_>>());
        eventually("the counts", async || rest.completed() == 20).await;
        assert_eq!((sending.entered(), sending.completed(), first.completed()), (20, 0, 0));
        assert!(sending.step("double").is_none() && first.step("add").is_none());
        let _ = tokio::join!(others.close(), more.close());
    }

    async fn the_result_goes_to_where_results_go_and_to_whoever_asks(fx) {
        let name = name(&fx, &["half", "text"]);
        let results = fx.queue("results").await;
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .step("half", |n: Message<u64>| async move {
                    Ok(n.payload().is_multiple_of(2).then_some(n.payload() / 2))
                })
                .step("text", |n: Message<u64>| async move { Ok(Some(format!("{} is it", n.payload()))) })
                .results_to("", results.as_str()),
        )
        .await;
        let requester = fx.mq.requester().await.unwrap();
        let patience = Duration::from_secs(20);
        let answer: String = requester.request(&name, "half", &10_u64, patience).await.unwrap();
        assert_eq!(answer, "5 is it");
        let early: Option<String> = requester.request(&name, "half", &7_u64, patience).await.unwrap();
        assert_eq!(early, None);
        fx.until_length(&results, 1).await;
        pipeline.send(&4).await.unwrap();
        fx.until_length(&results, 2).await;
        let mut inbox = crate::support::Inbox::of(&fx.mq, &results).await;
        let message = inbox.next().await;
        assert_eq!(message.body(), r#""5 is it""#);
        assert!(message.envelope().route().is_none(), "the slip ends with the run");
        requester.close().await;
    }

    async fn messages_between_steps_travel_in_the_codec_of_their_step(fx) {
        let name = name(&fx, &["name", "greet"]);
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .codec(TextCodec)
                .step("name", |n: Message<u64>| async move { Ok(Some(format!("number {}", n.payload()))) })
                .described_as("greeting")
                .step("greet", move |name: Message<String>| {
                    let tell = tell.clone();
                    async move {
                        tell.send(name).map_err(HandlerError::retry)?;
                        Ok(None::<String>)
                    }
                }),
        )
        .await;
        pipeline.send(&7).await.unwrap();
        let message = soon("the message", told.recv()).await.unwrap();
        assert_eq!(message.payload(), "number 7");
        assert!(message.content_type().unwrap().starts_with("text/plain"));
        assert_eq!(message.envelope().message_type(), "greeting");
    }

    async fn a_message_that_cannot_be_read_is_parked_and_the_others_go_on(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let pipeline = built(builder).await;
        let hostile = fx.mq.publisher::<String>(name.as_str(), "add");
        hostile.send(&"no number".to_owned()).await.unwrap();
        pipeline.send(&2).await.unwrap();
        assert_eq!(next(&mut told).await.0, 5);
        fx.until_length(&format!("{name}.add.parked"), 1).await;
    }

    async fn a_step_whose_queue_is_gone_keeps_the_message_until_it_is_back(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let policy = RetryPolicy::fixed(200, Duration::from_millis(20));
        let pipeline = built(builder.retry(policy).only(["double"])).await;
        fx.another().await.delete_queue(&format!("{name}.add")).await.unwrap();
        pipeline.send(&2).await.unwrap();
        eventually("the hop to be refused", async || {
            pipeline.step("double").unwrap().stats().retried > 1
        })
        .await;
        let (builder, mut told_later) = three(&fx.mq, &name);
        let _rest = built(builder.only(["add", "tell"])).await;
        assert_eq!(next(&mut told_later).await.0, 5);
        assert!(told.try_recv().is_err());
    }

    async fn an_idempotent_step_takes_a_repeated_hop_for_what_it_is(fx) {
        let name = name(&fx, &["first", "second"]);
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .step("first", |n: Message<u64>| async move { Ok(Some(*n.payload())) })
                .step("second", move |n: Message<u64>| {
                    let tell = tell.clone();
                    async move {
                        tell.send(n.id().to_owned()).map_err(HandlerError::retry)?;
                        Ok(None::<()>)
                    }
                })
                .for_step("second", StepOptions::new().idempotent(MemoryIdempotencyStore::new())),
        )
        .await;
        // The same message twice, as after a lost acknowledgement: the hop has the same id.
        for _ in 0..2 {
            pipeline.send_with(&7, Envelope::new().with_id("order-7")).await.unwrap();
        }
        soon("the second step", told.recv()).await.unwrap();
        eventually("the repetition to be recognised", async || {
            pipeline.step("second").unwrap().stats().duplicates == 1
        })
        .await;
        assert!(told.try_recv().is_err());
    }

    async fn a_step_may_end_the_run_at_every_position(fx) {
        let name = name(&fx, &["first", "second", "last"]);
        let ends_at = |at: u64| move |n: Message<u64>| async move {
            Ok((*n.payload() != at).then_some(*n.payload()))
        };
        let results = fx.queue("results").await;
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .step("first", ends_at(0))
                .step("second", ends_at(1))
                .step("last", ends_at(2))
                .results_to("", results.as_str()),
        )
        .await;
        for position in 0..3 {
            pipeline.send(&position).await.unwrap();
        }
        eventually("the ends to be counted", async || {
            let stats = pipeline.stats();
            (stats.completed, stats.ended_early, stats.failed) == (1, 2, 0)
        })
        .await;
        for (step, acked) in [("first", 3), ("second", 2), ("last", 1)] {
            eventually("the acknowledgements to be counted", async || {
                let stats = pipeline.step(step).unwrap().stats();
                (stats.acked, stats.retried) == (acked, 0)
            })
            .await;
            fx.until_length(&format!("{name}.{step}"), 0).await;
            fx.until_length(&format!("{name}.{step}.dlq"), 0).await;
        }
        fx.until_length(&results, 0).await;
    }

    async fn a_failure_at_every_position_repeats_that_step_only(fx) {
        let steps = ["first", "second", "last"];
        let name = name(&fx, &steps);
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        // Fails once where the payload says, after it has published something by itself.
        let step = |at: u64| {
            let tell = tell.clone();
            move |n: Message<u64>| {
                let tell = tell.clone();
                async move {
                    tell.send((*n.payload(), at)).map_err(HandlerError::retry)?;
                    let fails = *n.payload() == at && n.attempt() == 1;
                    if fails { Err(HandlerError::retry("once")) } else { Ok(Some(*n.payload())) }
                }
            }
        };
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .step("first", step(0))
                .step("second", step(1))
                .step("last", step(2))
                .retry(RetryPolicy::fixed(2, Duration::from_millis(1))),
        )
        .await;
        for number in 0..3 {
            pipeline.send(&number).await.unwrap();
        }
        eventually("every run to end", async || pipeline.completed() == 3).await;
        let mut ran = std::collections::BTreeMap::new();
        while let Ok(run) = told.try_recv() {
            *ran.entry(run).or_insert(0) += 1;
        }
        for number in 0..3 {
            for at in 0..3 {
                assert_eq!(ran[&(number, at)], if number == at { 2 } else { 1 }, "{number} at {at}");
            }
        }
    }

    async fn the_order_of_options_and_steps_changes_nothing(fx) {
        let step = |n: Message<u64>| async move {
            if n.attempt() < 3 { Err(HandlerError::retry("not yet")) } else { Ok(Some(n.payload() + 1)) }
        };
        let policy = || RetryPolicy::fixed(3, Duration::from_millis(1));
        let own = || StepOptions::new().described_as("second's");
        let results = fx.queue("results").await;
        let orders = [
            fx.mq
                .pipeline::<u64>(name(&fx, &["first", "second"]))
                .retry(policy())
                .described_as("all's")
                .for_step("second", own())
                .results_to("", results.as_str())
                .step("first", step)
                .step("second", step),
            fx.mq
                .pipeline::<u64>(name(&fx, &["first", "second"]))
                .step("first", step)
                .step("second", step)
                .results_to("", results.as_str())
                .for_step("second", own())
                .described_as("all's")
                .retry(policy()),
            fx.mq
                .pipeline::<u64>(name(&fx, &["first", "second"]))
                .for_step("second", own())
                .step("first", step)
                .retry(policy())
                .results_to("", results.as_str())
                .step("second", step)
                .described_as("all's"),
        ];
        let mut inbox = crate::support::Inbox::of(&fx.mq, &results).await;
        for builder in orders {
            let pipeline = built(builder).await;
            pipeline.send(&1).await.unwrap();
            let result = inbox.next().await;
            assert_eq!((&result.body()[..], result.envelope().message_type()), (&b"3"[..], "second's"));
            let retried = |step: &str| pipeline.step(step).unwrap().stats().retried;
            eventually("the retries to be counted", async || {
                (retried("first"), retried("second")) == (2, 2)
            })
            .await;
        }
    }

    async fn a_step_is_scaled_while_it_runs(fx) {
        let name = name(&fx, &["work"]);
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let most = Arc::new(AtomicU64::new(0));
        let (behind, peak, running) = (gate.clone(), most.clone(), Arc::new(AtomicU64::new(0)));
        let pipeline = built(
            fx.mq
                .pipeline::<u64>(name.as_str())
                .step("work", move |n: Message<u64>| {
                    let (gate, most, running) = (behind.clone(), peak.clone(), running.clone());
                    async move {
                        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        gate.acquire().await?.forget();
                        running.fetch_sub(1, Ordering::SeqCst);
                        Ok(Some(*n.payload()))
                    }
                })
                .prefetch(10),
        )
        .await;
        for number in 0..20 {
            pipeline.send(&number).await.unwrap();
        }
        let step = pipeline.step("work").unwrap();
        eventually("one to run", async || pipeline.in_flight() == 1).await;
        step.set_concurrency(4).unwrap();
        eventually("four to run", async || pipeline.in_flight() == 4).await;
        step.set_concurrency(2).unwrap();
        gate.add_permits(2);
        eventually("two to end", async || pipeline.completed() == 2).await;
        eventually("two to be left", async || pipeline.in_flight() == 2).await;
        most.store(0, Ordering::SeqCst);
        gate.add_permits(18);
        eventually("the rest to end", async || pipeline.completed() == 20).await;
        assert!(most.load(Ordering::SeqCst) <= 2);
        for refused in [0, 11] {
            let refused = step.set_concurrency(refused);
            assert!(matches!(refused, Err(Error::InvalidOption { option: "concurrency", .. })));
        }
        assert_eq!(step.concurrency(), 2);
    }
}

#[tokio::test]
async fn definitions_that_cannot_work_are_refused_before_anything_is_declared() {
    let fx = Fixture::on(Broker::Memory).await;
    let pass = |n: Message<u64>| async move { Ok(Some(*n.payload())) };
    let long = "x".repeat(250);
    let refused = [
        ("pipeline", fx.mq.pipeline::<u64>("p").build().await),
        ("pipeline", fx.mq.pipeline::<u64>("").step("a", pass).build().await),
        ("step", fx.mq.pipeline::<u64>("p").step("", pass).build().await),
        ("step", fx.mq.pipeline::<u64>("p").step("a,b", pass).build().await),
        ("step", fx.mq.pipeline::<u64>("p").step(long, pass).build().await),
        ("step", fx.mq.pipeline::<u64>("p").step("a", pass).step("a", pass).build().await),
        ("only", fx.mq.pipeline::<u64>("p").step("a", pass).only(["b"]).build().await),
        (
            "for_step",
            fx.mq
                .pipeline::<u64>("p")
                .step("a", pass)
                .for_step("b", StepOptions::new())
                .build()
                .await,
        ),
        ("concurrency", fx.mq.pipeline::<u64>("p").step("a", pass).concurrency(0).build().await),
        ("prefetch", fx.mq.pipeline::<u64>("p").step("a", pass).prefetch(0).build().await),
        (
            "prefetch",
            fx.mq
                .pipeline::<u64>("p")
                .step("a", pass)
                .step("b", pass)
                .for_step("b", StepOptions::new().prefetch(0))
                .build()
                .await,
        ),
        (
            "results_to",
            fx.mq
                .pipeline::<u64>("p")
                .step("a", pass)
                .results_to("x".repeat(256), "k")
                .build()
                .await,
        ),
    ];
    for (option, built) in refused {
        match built {
            Err(Error::InvalidOption { option: named, .. }) => assert_eq!(named, option),
            other => panic!("{option}: {other:?}"),
        }
    }
    assert_eq!(fx.mq.queue_length("p.a").await.unwrap(), None);
}
