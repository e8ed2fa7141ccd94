//! Calls that go well, calls that nobody answers, and calls that are given up.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use acemq::{
    AceMq, CallOptions, Error, Exchange, HeaderValue, MemoryIdempotencyStore, Message, Queue,
    RequestError, TextCodec, Topology, testing::MemoryBroker,
};
use bytes::Bytes;
use futures::StreamExt;

use crate::{
    Gated, LONG, SHORT, answer_to, ask, responder,
    support::{Inbox, eventually, soon, unique},
    until_empty,
};

on_both_brokers! {
    async fn each_question_gets_its_own_answer(fx) {
        let queue = fx.queue("squares").await;
        let responder = responder(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        let calls = (0..500).map(|question| {
            let (requester, queue) = (requester.clone(), queue.clone());
            tokio::spawn(async move { (question, ask(&requester, &queue, question).await) })
        });
        for call in calls.collect::<Vec<_>>() {
            let (question, answer) = call.await.unwrap();
            assert_eq!(answer.unwrap(), answer_to(question));
        }
        let stats = requester.stats();
        assert_eq!((stats.answered, stats.in_flight, stats.unmatched), (500, 0, 0));
        eventually("the counts", async || responder.stats().answered == 500).await;
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(0));
        requester.close().await;
    }

    async fn a_request_carries_what_its_options_say_and_expires_with_its_call(fx) {
        let queue = fx.queue("requests").await;
        let mut inbox = Inbox::of(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        let options = CallOptions::new().timeout(SHORT).message_type("price.requested").version(3)
            .caused_by("order-7").header("x-tenant", "acme").priority(4);
        let error = requester.request::<_, u64>("", &queue, &7, options).await.unwrap_err();
        assert!(matches!(error, RequestError::TimedOut { waited } if waited == SHORT), "{error:?}");
        let request = inbox.next().await;
        let envelope = request.envelope();
        assert_eq!(envelope.id(), envelope.correlation_id());
        assert_eq!(envelope.message_type(), "price.requested");
        assert_eq!((envelope.schema_version(), envelope.causation_id()), (3, Some("order-7")));
        assert_eq!(request.headers().text("x-tenant"), Some("acme"));
        assert_eq!(request.headers().text("acemq-reply-to"), requester.reply_queue().as_deref());
        assert_eq!(request.reply_to(), requester.reply_queue().as_deref());
        inbox.consumer.close().await;

        // Nobody listens: the broker drops what nobody waits for.
        let never = requester.request::<_, u64>("", &queue, &7, SHORT).await.unwrap_err();
        assert!(matches!(never, RequestError::TimedOut { .. }));
        fx.until_length(&queue, 0).await;
        let kept = CallOptions::from(SHORT).never_expires();
        let never = requester.request::<_, u64>("", &queue, &7, kept).await.unwrap_err();
        assert!(matches!(never, RequestError::TimedOut { .. }));
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(1));
        assert_eq!(requester.stats().timed_out, 3);
        until_empty(&requester).await;
        requester.close().await;
    }

    async fn a_call_can_be_started_now_and_awaited_later(fx) {
        let queue = fx.queue("requests").await;
        let _responder = responder(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        let first = requester.start::<_, u64>("", &queue, &1, LONG).await.unwrap();
        let second = requester.start::<_, u64>("", &queue, &2, LONG).await.unwrap();
        let given_up = requester.start::<_, u64>("", &queue, &3, LONG).await.unwrap();
        drop(given_up);
        assert_eq!(soon("the second", second).await.unwrap(), answer_to(2));
        assert_eq!(soon("the first", first).await.unwrap(), answer_to(1));
        until_empty(&requester).await;
        assert_eq!(requester.stats().cancelled, 1);
        requester.close().await;
    }

    async fn other_codecs_and_whole_messages_go_both_ways(fx) {
        let queue = fx.queue("requests").await;
        let responder = fx.mq.responder_with::<String, String, _>(queue.as_str(), TextCodec)
            .reply_type("text.shouted")
            .start_with_message(|message: Message<String>| async move {
                assert!(!message.is_redelivered());
                let by = message.headers().text("x-by").unwrap_or("nobody").to_owned();
                Ok::<_, Infallible>(format!("{} by {by}", message.payload().to_uppercase()))
            }).await.unwrap();
        let requester = fx.mq.requester().await.unwrap();
        let options = CallOptions::from(LONG).header("x-by", "me");
        let body = Bytes::from_static(b"hello");
        let reply = soon("a reply", requester.request_raw("", &queue, body, "text/plain", options)).await.unwrap();
        assert_eq!(reply.body().as_ref(), b"HELLO by me");
        assert_eq!(reply.content_type(), Some("text/plain; charset=utf-8"));
        assert_eq!(reply.envelope().message_type(), "text.shouted");
        assert_eq!(reply.envelope().causation_id(), Some(reply.envelope().correlation_id()));
        assert!(reply.envelope().origin().unwrap().starts_with("acemq@"));
        // The answer is text, where JSON is wanted.
        let error = requester.request::<_, u64>("", &queue, &7, LONG).await.unwrap_err();
        assert!(matches!(error, RequestError::ResponderFailed { error_type, .. } if error_type == "Undecodable"));
        requester.close().await;
        responder.close().await;
    }

    async fn a_request_that_no_queue_takes_fails_at_once_and_its_neighbours_do_not(fx) {
        let queue = fx.queue("requests").await;
        let _responder = responder(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        let missing = unique("missing");
        for _ in 0..5 {
            let calls = (0..100).map(|question| {
                let target = if question % 2 == 0 { queue.clone() } else { missing.clone() };
                let requester = requester.clone();
                tokio::spawn(async move { (question, ask(&requester, &target, question).await) })
            });
            for call in calls.collect::<Vec<_>>() {
                match call.await.unwrap() {
                    (question, Ok(answer)) => assert_eq!(answer, answer_to(question)),
                    (question, Err(RequestError::Unroutable { routing_key, .. })) => {
                        assert_eq!((question % 2, &routing_key), (1, &missing));
                    }
                    (_, other) => panic!("{other:?}"),
                }
            }
        }
        let stats = requester.stats();
        assert_eq!((stats.answered, stats.failed, stats.in_flight), (250, 250, 0));
        requester.close().await;
    }

    async fn what_cannot_be_sent_is_said_with_its_reason(fx) {
        let requester = fx.mq.requester().await.unwrap();
        let refused = |error: RequestError| match error {
            RequestError::NotSent(Error::InvalidOption { option, .. }) => option,
            other => panic!("{other:?}"),
        };
        let ask = async |options: CallOptions| {
            refused(requester.request::<_, u64>("", "q", &1, options).await.unwrap_err())
        };
        assert_eq!(ask(Duration::ZERO.into()).await, "timeout");
        assert_eq!(ask(CallOptions::new().header("x-acemq-id", "mine")).await, "header");
        let long = requester.request::<_, u64>("", &"k".repeat(256), &1, LONG).await.unwrap_err();
        assert_eq!(refused(long), "routing_key");
        let none = requester.request_many::<_, u64>("", "q", &1, 0, LONG).await.unwrap_err();
        assert_eq!(refused(none), "count");
        let nowhere = requester.request::<_, u64>(&unique("exchange"), "q", &1, LONG).await.unwrap_err();
        assert!(matches!(nowhere, RequestError::NotSent(Error::NotFound { .. })), "{nowhere:?}");
        assert_eq!(requester.stats().in_flight, 0);
        requester.close().await;
    }

    async fn a_late_reply_is_counted_and_never_answers_another_call(fx) {
        let queue = fx.queue("requests").await;
        let mut gated = Gated::on(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        for round in 0..20 {
            let first = requester.request::<_, u64>("", &queue, &round, SHORT).await.unwrap_err();
            assert!(matches!(first, RequestError::TimedOut { .. }), "{first:?}");
            assert_eq!(gated.arrival().await, round);
            // The late answer goes out before the one to the next question.
            gated.gate.add_permits(1);
            eventually("the late reply", async || requester.stats().unmatched == round + 1).await;
            let second = ask(&requester, &queue, 1000 + round);
            gated.gate.add_permits(1);
            assert_eq!(second.await.unwrap(), answer_to(1000 + round));
            gated.arrival().await;
        }
        let stats = requester.stats();
        assert_eq!((stats.answered, stats.timed_out, stats.in_flight), (20, 20, 0));
        requester.close().await;
    }

    async fn two_requesters_never_see_each_others_replies(fx) {
        let queue = fx.queue("requests").await;
        let _responder = responder(&fx.mq, &queue).await;
        let one = fx.mq.requester().await.unwrap();
        let other = fx.another().await.requester().await.unwrap();
        assert_ne!(one.reply_queue(), other.reply_queue());
        let calls = (0..200).map(|question| {
            let requester = if question % 2 == 0 { one.clone() } else { other.clone() };
            let queue = queue.clone();
            tokio::spawn(async move { (question, ask(&requester, &queue, question).await) })
        });
        for call in calls.collect::<Vec<_>>() {
            let (question, answer) = call.await.unwrap();
            assert_eq!(answer.unwrap(), answer_to(question));
        }
        for requester in [one, other] {
            let stats = requester.stats();
            assert_eq!((stats.answered, stats.unmatched), (100, 0));
            requester.close().await;
        }
    }

    async fn calls_that_are_given_up_at_random_points_leave_nothing_behind(fx) {
        let queue = fx.queue("requests").await;
        let _responder = responder(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        for _ in 0..50 {
            let calls: Vec<_> = (0..200).map(|question| {
                let (requester, queue) = (requester.clone(), queue.clone());
                tokio::spawn(async move { (question, ask(&requester, &queue, question).await) })
            }).collect();
            for (number, call) in calls.into_iter().enumerate() {
                for _ in 0..fastrand::u32(0..30) {
                    tokio::task::yield_now().await;
                }
                // Some are let alone, so that others are given up at later points.
                if number % 10 > 0 {
                    call.abort();
                }
                if let Ok((question, answer)) = call.await {
                    assert_eq!(answer.unwrap(), answer_to(question));
                }
            }
        }
        until_empty(&requester).await;
        let stats = requester.stats();
        println!("{stats:?}");
        assert!(stats.cancelled > 0 && stats.answered > 0, "{stats:?}");
        assert_eq!(stats.timed_out + stats.failed, 0);
        assert_eq!(ask(&requester, &queue, 7).await.unwrap(), answer_to(7));
        requester.close().await;
    }

    async fn closing_fails_what_waits_and_what_comes_after_and_deletes_the_queue(fx) {
        let queue = fx.queue("requests").await;
        let mut gated = Gated::on(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        let reply_queue = requester.reply_queue().unwrap();
        assert_eq!(fx.mq.queue_length(&format!("{reply_queue}.dlq")).await.unwrap(), None);
        assert_eq!(fx.mq.queue_length(&format!("{reply_queue}.parked")).await.unwrap(), None);
        let waiting = requester.start::<_, u64>("", &queue, &1, LONG).await.unwrap();
        let gathering = requester.request_many::<_, u64>("", &queue, &2, 5, LONG).await.unwrap();
        gated.arrival().await;
        gated.arrival().await;
        requester.close().await;
        requester.close().await;
        assert!(matches!(soon("the end", waiting).await, Err(RequestError::Closed)));
        let gathered: Vec<_> = gathering.collect().await;
        assert!(matches!(gathered[..], [Err(RequestError::Closed)]), "{gathered:?}");
        let later = requester.request::<_, u64>("", &queue, &1, LONG).await;
        assert!(matches!(later, Err(RequestError::Closed)));
        assert_eq!(requester.stats().in_flight, 0);
        assert_eq!(fx.mq.queue_length(&reply_queue).await.unwrap(), None);
        // The answers find nobody: the requests are done with all the same.
        gated.gate.add_permits(2);
        eventually("the counts", async || gated.responder.stats().requester_gone == 2).await;
        assert_eq!(fx.mq.queue_length(&format!("{queue}.dlq")).await.unwrap(), Some(0));
    }

    async fn dropping_the_last_requester_closes_it_unless_a_call_waits(fx) {
        let queue = fx.queue("requests").await;
        let mut gated = Gated::on(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        let reply_queue = requester.reply_queue().unwrap();
        let waiting = requester.start::<_, u64>("", &queue, &1, LONG).await.unwrap();
        drop(requester);
        gated.arrival().await;
        gated.gate.add_permits(1);
        assert_eq!(soon("the answer", waiting).await.unwrap(), answer_to(1));
        eventually("the queue to go", async || {
            fx.mq.queue_length(&reply_queue).await.unwrap().is_none()
        }).await;
    }

    async fn closing_the_handle_ends_calls_at_once(fx) {
        let queue = fx.queue("requests").await;
        let mut gated = Gated::on(&fx.mq, &queue).await;
        let mq = fx.another().await;
        let requester = mq.requester().await.unwrap();
        let waiting = requester.start::<_, u64>("", &queue, &1, LONG).await.unwrap();
        gated.arrival().await;
        soon("the close", mq.close()).await;
        assert!(matches!(soon("the end", waiting).await, Err(RequestError::Closed)));
        assert!(matches!(mq.requester().await, Err(Error::Closed)));
    }

    async fn many_answers_are_gathered_until_the_count_or_the_deadline(fx) {
        let exchange = fx.name("quotes");
        let mut topology = Topology::new().exchange(Exchange::fanout(exchange.as_str()).auto_delete());
        let mut responders = Vec::new();
        let queues = ["a", "b", "c", "mute"].map(|name| fx.name(name));
        for queue in &queues {
            topology = topology.queue(Queue::new(queue.as_str())).bind(queue.as_str(), exchange.as_str(), "");
        }
        fx.mq.declare(&topology).await.unwrap();
        for (factor, queue) in (1_u64..).zip(&queues[..3]) {
            responders.push(fx.mq.respond(queue.as_str(), move |question: u64| async move {
                if factor == 3 { Err(std::io::Error::other("no quote")) } else { Ok(question * factor) }
            }).await.unwrap());
        }
        let requester = fx.mq.requester().await.unwrap();
        for (count, options) in [(3, LONG), (9, Duration::from_secs(1))] {
            let answers = requester.request_many::<_, u64>(&exchange, "", &10, count, options).await.unwrap();
            let (mut found, mut failed) = (Vec::new(), 0);
            for answer in soon("the answers", answers.collect::<Vec<_>>()).await {
                match answer {
                    Ok(answer) => found.push(answer),
                    Err(RequestError::ResponderFailed { message, .. }) => {
                        assert_eq!(message, "no quote");
                        failed += 1;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            found.sort_unstable();
            assert_eq!((found, failed), (vec![10, 20], 1));
        }
        let nobody = requester.request_many::<_, u64>("", &queues[3], &1, 2, SHORT).await.unwrap();
        assert_eq!(soon("the deadline", nobody.count()).await, 0);
        let missing = requester.request_many::<_, u64>("", &unique("missing"), &1, 2, LONG).await;
        assert!(matches!(missing, Err(RequestError::Unroutable { .. })));
        drop(requester.request_many::<_, u64>("", &queues[3], &1, 2, LONG).await.unwrap());
        let stats = requester.stats();
        assert_eq!((stats.answered, stats.timed_out, stats.failed), (2, 1, 1));
        assert_eq!((stats.cancelled, stats.in_flight), (1, 0));
        requester.close().await;
    }

    async fn an_idempotent_responder_works_once_on_a_request_that_comes_twice(fx) {
        let queue = fx.queue("requests").await;
        let handled = Arc::new(Mutex::new(Vec::new()));
        let responder = {
            let handled = Arc::clone(&handled);
            fx.mq.responder(queue.as_str()).idempotent(MemoryIdempotencyStore::new())
                .start(move |question: u64| {
                    handled.lock().unwrap().push(question);
                    std::future::ready(Ok::<_, Infallible>(question))
                }).await.unwrap()
        };
        let mut replies = Inbox::of(&fx.mq, &fx.queue("replies").await).await;
        let envelope = acemq::Envelope::new()
            .header("acemq-reply-to", HeaderValue::from(replies.consumer.queue()));
        for _ in 0..3 {
            let publisher = fx.mq.publisher::<u64>("", queue.as_str());
            publisher.send_with(&7, envelope.clone()).await.unwrap();
        }
        assert_eq!(replies.next().await.body().as_ref(), b"7");
        eventually("the twins", async || responder.consumer().stats().duplicates == 2).await;
        assert_eq!(*handled.lock().unwrap(), [7]);
        responder.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_nobody_answers_leave_nothing_behind() {
    let url = format!("memory://{}", unique("broker"));
    let (mq, broker) = (AceMq::connect(url.as_str()).await.unwrap(), MemoryBroker::of(&url));
    mq.declare(&Topology::new().queue(Queue::quorum("q"))).await.unwrap();
    let requester = mq.requester().await.unwrap();
    for _ in 0..20 {
        let calls = (0..1000_u64).map(|question| {
            let requester = requester.clone();
            async move { requester.request::<_, u64>("", "q", &question, SHORT).await }
        });
        for call in futures::future::join_all(calls).await {
            assert!(matches!(call, Err(RequestError::TimedOut { .. })), "{call:?}");
        }
    }
    let stats = requester.stats();
    assert_eq!((stats.timed_out, stats.in_flight), (20_000, 0));
    eventually("the requests to expire", async || broker.messages("q").is_empty()).await;
    requester.close().await;
    assert_eq!(broker.queue_names(), ["q"]);
}
