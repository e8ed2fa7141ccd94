//! Responders that fail, and requests that cannot be answered.

use std::{collections::HashMap, time::Duration};

use acemq::{
    AceMq, CallOptions, Envelope, Error, RequestError, Requester, Responder, ResponderError,
    testing::MemoryBroker,
};
use bytes::Bytes;
use serde::{Serialize, Serializer, ser::Error as _};

use crate::{
    Gated, LONG, SHORT, answer_to, responder,
    support::{Inbox, eventually, soon},
};

/// An answer that cannot always be encoded.
struct Moody(String);

impl Serialize for Moody {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_str() {
            "unencodable" => Err(S::Error::custom("not in the mood")),
            text => serializer.serialize_str(text),
        }
    }
}

/// Answers in the way that the request names.
async fn moody(word: String) -> Result<Moody, ResponderError> {
    match word.as_str() {
        "named" => Err(ResponderError::new("PriceNotFound", "no price for sku 42")),
        "plain" => Err(std::io::Error::other("disk full"))?,
        "panic" => panic!("out of bounds"),
        "huge" => Err(ResponderError::new("Huge", "x\n\0".repeat(350_000))),
        "unsendable" => Ok(Moody("x".repeat(20 * 1024 * 1024))),
        _ => Ok(Moody(word)),
    }
}

async fn fails(requester: &Requester, queue: &str, word: &str) -> (String, String) {
    let call = requester.request::<_, String>("", queue, &word, LONG);
    match soon("the failure", call).await {
        Err(RequestError::ResponderFailed { error_type, message }) => (error_type, message),
        other => panic!("{word}: {other:?}"),
    }
}

async fn send_without_address(mq: &AceMq, queue: &str) {
    mq.publisher::<u64>("", queue).send(&1).await.unwrap();
}

async fn until(
    responder: &Responder,
    what: &str,
    count: impl Fn(acemq::request_reply::ResponderStats) -> bool,
) {
    eventually(what, async || count(responder.stats())).await;
}

on_both_brokers! {
    async fn each_failure_of_a_responder_reaches_the_caller_at_once_with_its_name(fx) {
        let queue = fx.queue("requests").await;
        let responder = fx.mq.respond(queue.as_str(), moody).await.unwrap();
        let requester = fx.mq.requester().await.unwrap();
        let named = fails(&requester, &queue, "named").await;
        assert_eq!(named, ("PriceNotFound".into(), "no price for sku 42".into()));
        assert_eq!(fails(&requester, &queue, "plain").await, ("Error".into(), "disk full".into()));
        let (name, text) = fails(&requester, &queue, "panic").await;
        assert_eq!((name.as_str(), text.as_str()), ("Panic", "the handler panicked: out of bounds"));
        let (name, text) = fails(&requester, &queue, "unencodable").await;
        assert_eq!((name.as_str(), text.as_str()), ("Unencodable", "not in the mood"));
        let (name, text) = fails(&requester, &queue, "huge").await;
        assert!(name == "Huge" && text.len() <= 8192 && !text.contains(['\n', '\0']), "{name}");
        let (name, text) = fails(&requester, &queue, "unsendable").await;
        assert!(name == "Unsendable" && text.contains("max_body_size"), "{name}: {text}");
        let call = requester.request::<_, String>("", &queue, &7, LONG);
        match soon("the failure", call).await {
            Err(RequestError::ResponderFailed { error_type, .. }) => assert_eq!(error_type, "Undecodable"),
            other => panic!("{other:?}"),
        }

        fx.until_length(&format!("{queue}.dlq"), 6).await;
        fx.until_length(&format!("{queue}.parked"), 1).await;
        let mut dead = Inbox::of(&fx.mq, &format!("{queue}.dlq")).await;
        let mut errors = HashMap::new();
        for _ in 0..6 {
            let message = dead.next().await;
            assert_eq!(message.attempt(), 1);
            errors.insert(message.body().clone(), message.envelope().error().unwrap().to_owned());
        }
        assert_eq!(errors[&Bytes::from_static(b"\"named\"")], "the handler rejected it: PriceNotFound: no price for sku 42");
        until(&responder, "the counts", |s| (s.failed, s.undecodable, s.answered) == (6, 1, 0)).await;
        let calm: String = soon("an answer", requester.request("", &queue, &"calm", LONG)).await.unwrap();
        assert_eq!(calm, "calm");
        requester.close().await;
    }

    async fn a_responder_answers_after_a_thousand_failures(fx) {
        let queue = fx.queue("requests").await;
        let responder = fx.mq.responder(queue.as_str()).prefetch(8).concurrency(8).start(moody).await.unwrap();
        let requester = fx.mq.requester().await.unwrap();
        let words = ["named", "plain", "panic", "unencodable"];
        let calls: Vec<_> = (0..1000).map(|number| {
            let (requester, queue) = (requester.clone(), queue.clone());
            tokio::spawn(async move { fails(&requester, &queue, words[number % 4]).await })
        }).collect();
        for call in calls {
            call.await.unwrap();
        }
        let calm: String = soon("an answer", requester.request("", &queue, &"calm", LONG)).await.unwrap();
        assert_eq!((calm.as_str(), requester.stats().in_flight), ("calm", 0));
        until(&responder, "the counts", |s| (s.failed, s.answered) == (1000, 1)).await;
        requester.close().await;
    }

    async fn a_request_without_an_address_is_dead_lettered_and_counted(fx) {
        let queue = fx.queue("requests").await;
        let responder = responder(&fx.mq, &queue).await;
        send_without_address(&fx.mq, &queue).await;
        let mut dead = Inbox::of(&fx.mq, &format!("{queue}.dlq")).await;
        let error = dead.next().await.envelope().error().unwrap().to_owned();
        assert_eq!(error, "the handler rejected it: the request has no reply address");
        until(&responder, "the count", |s| s.unanswerable == 1).await;
    }

    async fn an_address_that_is_gone_is_counted_and_one_that_cannot_be_is_dead_lettered(fx) {
        let queue = fx.queue("requests").await;
        let responder = responder(&fx.mq, &queue).await;
        for address in ["gone".to_owned(), "k".repeat(256)] {
            let envelope = Envelope::new().header("acemq-reply-to", address);
            fx.mq.publisher::<u64>("", queue.as_str()).send_with(&1, envelope).await.unwrap();
        }
        until(&responder, "the counts", |s| (s.requester_gone, s.failed) == (1, 1)).await;
        fx.until_length(&format!("{queue}.dlq"), 1).await;
        let requester = fx.mq.requester().await.unwrap();
        assert_eq!(crate::ask(&requester, &queue, 3).await.unwrap(), answer_to(3));
        requester.close().await;
    }

    async fn a_request_whose_caller_has_gone_is_dropped_and_counted(fx) {
        let queue = fx.queue("requests").await;
        let gated = {
            let mut gated = Gated::on(&fx.mq, &queue).await;
            let requester = fx.mq.requester().await.unwrap();
            // As many as the handlers take, and ten more that wait behind them.
            let busy: Vec<_> = futures::future::join_all((0..50).map(|question| {
                let (requester, queue) = (&requester, &queue);
                async move { requester.start::<_, u64>("", queue, &question, LONG).await }
            })).await;
            for _ in 0..50 {
                gated.arrival().await;
            }
            let late = futures::future::join_all((0..10).map(|question| {
                let (requester, queue) = (&requester, &queue);
                async move { requester.request::<_, u64>("", queue, &(100 + question), SHORT).await }
            })).await;
            assert!(late.iter().all(|call| matches!(call, Err(RequestError::TimedOut { .. }))));
            gated.gate.add_permits(50);
            for call in busy {
                soon("the answer", call.unwrap()).await.unwrap();
            }
            assert_eq!(crate::ask_with_gate(&requester, &queue, &gated.gate, 5).await, answer_to(5));
            assert_eq!(gated.arrival().await, 5, "a request was worked on for nobody");
            requester.close().await;
            gated
        };
        // What waited in the queue was dropped by the broker, what was sent ahead by the responder.
        eventually("the drops", async || {
            fx.mq.queue_length(&queue).await.unwrap() == Some(0)
                && gated.responder.stats().answered == 51
        }).await;
    }

    async fn clocks_may_differ_by_what_the_responder_tolerates(fx) {
        let (queue, lenient) = (fx.queue("strict").await, fx.queue("lenient").await);
        let strict = responder(&fx.mq, &queue).await;
        let tolerant = fx.mq.responder(lenient.as_str()).clock_tolerance(Duration::from_secs(60))
            .start(|n: u64| async move { Ok::<_, std::convert::Infallible>(n) }).await.unwrap();
        let replies = fx.queue("replies").await;
        let started_long_ago = chrono::Utc::now() - chrono::TimeDelta::seconds(40);
        for target in [&queue, &lenient] {
            let envelope = Envelope::new().header("acemq-reply-to", replies.as_str()).first_seen(started_long_ago);
            fx.mq.publisher::<u64>("", target.as_str()).ttl(LONG).send_with(&1, envelope).await.unwrap();
        }
        until(&strict, "the drop", |s| (s.expired, s.answered) == (1, 0)).await;
        until(&tolerant, "the answer", |s| (s.expired, s.answered) == (0, 1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_published_makes_the_request_come_again() {
    let url = format!("memory://{}", crate::support::unique("broker"));
    let (mq, broker) = (AceMq::connect(url.as_str()).await.unwrap(), MemoryBroker::of(&url));
    mq.declare(&acemq::Topology::new().queue(acemq::Queue::new("q"))).await.unwrap();
    let mut gated = Gated::on(&mq, "q").await;
    let requester = mq.requester().await.unwrap();
    let options = CallOptions::from(Duration::from_secs(60));
    let waiting = requester.start::<_, u64>("", "q", &1, options).await.unwrap();
    gated.arrival().await;
    broker.block("low on memory");
    eventually("the alarm", async || {
        matches!(mq.publisher::<u64>("", "q").send(&1).await, Err(Error::Blocked { .. }))
    })
    .await;
    gated.gate.add_permits(1);
    eventually("the failed reply", async || gated.responder.stats().reply_failed == 1).await;
    broker.unblock();
    gated.arrival().await;
    gated.gate.add_permits(1);
    assert_eq!(waiting.await.unwrap(), answer_to(1));
    requester.close().await;
}
