//! Trace context: one trace from the first publish to the last effect.

use std::{convert::Infallible, sync::Arc, time::Duration};

use acemq::{
    Envelope, Message, OutboxRecord, OutboxRelay, ResultExt, RetryPolicy, SqliteOutbox,
    TraceContext,
};
use sqlx::sqlite::SqlitePoolOptions;
use tokio::sync::mpsc;

use crate::support::{Fixture, soon};

/// A consumer that tells under which context each message is handled, and what it then does.
async fn traced<F, W>(
    fixture: &Fixture,
    queue: &str,
    work: F,
) -> (acemq::Consumer, mpsc::UnboundedReceiver<Option<TraceContext>>)
where
    F: Fn(Message<u32>) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = acemq::HandlerResult> + Send + 'static,
{
    let (seen, contexts) = mpsc::unbounded_channel();
    let consumer = fixture
        .mq
        .consumer::<u32>(queue)
        .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
        .start(move |message: Message<u32>| {
            let (seen, work) = (seen.clone(), work.clone());
            async move {
                seen.send(TraceContext::current())?;
                work(message).await
            }
        })
        .await
        .unwrap();
    (consumer, contexts)
}

async fn next(
    contexts: &mut mpsc::UnboundedReceiver<Option<TraceContext>>,
) -> Option<TraceContext> {
    soon("a message", contexts.recv()).await.expect("the consumer runs")
}

on_both_brokers! {
    async fn a_handler_runs_under_the_context_of_its_message_and_hands_it_on(fixture) {
        let (first, second) = (fixture.queue("first").await, fixture.queue("second").await);
        let onward = fixture.mq.publisher::<u32>("", second.as_str());
        let (_first, mut at_first) = traced(&fixture, &first, move |message| {
            let onward = onward.clone();
            async move {
                onward.send(message.payload()).await?;
                Ok(())
            }
        })
        .await;
        let (_second, mut at_second) = traced(&fixture, &second, |_| async { Ok(()) }).await;
        let publisher = fixture.mq.publisher::<u32>("", first.as_str());
        for _ in 0..2 {
            let context = TraceContext::start();
            context.clone().scope(publisher.send(&1)).await.unwrap();
            assert_eq!(next(&mut at_first).await, Some(context.clone()));
            assert_eq!(next(&mut at_second).await, Some(context));
        }
        publisher.send(&1).await.unwrap();
        assert_eq!(next(&mut at_first).await, None);
        assert_eq!(next(&mut at_second).await, None);
    }

    async fn retries_dead_letters_and_replays_stay_in_the_trace(fixture) {
        let queue = fixture.queue("failing").await;
        let (_consumer, mut contexts) =
            traced(&fixture, &queue, |_| async { Err(std::io::Error::other("not yet").into()) }).await;
        let context = TraceContext::start();
        let publisher = fixture.mq.publisher::<u32>("", queue.as_str());
        context.clone().scope(publisher.send(&1)).await.unwrap();
        assert_eq!(next(&mut contexts).await, Some(context.clone()));
        assert_eq!(next(&mut contexts).await, Some(context.clone()), "the second attempt");
        let dead = format!("{queue}.dlq");
        fixture.until_length(&dead, 1).await;
        let report = fixture.mq.replay(dead.as_str()).run().await.unwrap();
        assert_eq!(report.moved(), 1);
        assert_eq!(next(&mut contexts).await, Some(context), "replayed");
    }

    async fn a_question_and_what_its_handler_does_are_of_one_trace(fixture) {
        let queue = fixture.queue("questions").await;
        let (seen, mut contexts) = mpsc::unbounded_channel();
        let _responder = fixture
            .mq
            .respond(queue.as_str(), move |question: u32| {
                let _ = seen.send(TraceContext::current());
                async move { Ok::<_, Infallible>(question) }
            })
            .await
            .unwrap();
        let requester = fixture.mq.requester().await.unwrap();
        let context = TraceContext::start();
        let patience = Duration::from_secs(20);
        let body = bytes::Bytes::from_static(b"7");
        let asking = requester.request_raw("", &queue, body, "application/json", patience);
        let answer = context.clone().scope(asking).await.unwrap();
        assert_eq!(next(&mut contexts).await, Some(context.clone()));
        let parent = answer.headers().get("traceparent").and_then(acemq::HeaderValue::as_str);
        assert_eq!(parent, Some(context.traceparent()));
        requester.close().await;
    }

    async fn a_record_of_the_outbox_goes_out_in_the_trace_that_stored_it(fixture) {
        let queue = fixture.queue("relayed").await;
        let (_consumer, mut contexts) = traced(&fixture, &queue, |_| async { Ok(()) }).await;
        let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
        let outbox = SqliteOutbox::new(pool.clone());
        outbox.migrate().await.unwrap();
        let context = TraceContext::start();
        context
            .clone()
            .scope(async {
                let mut tx = pool.begin().await.unwrap();
                let record = OutboxRecord::json("", queue.as_str(), &1_u32).unwrap();
                outbox.add(&mut tx, record).await.unwrap();
                tx.commit().await.unwrap();
            })
            .await;
        // Published by a task that knows nothing of the trace.
        let report = OutboxRelay::new(&fixture.mq, outbox).drain_once().await.unwrap();
        assert_eq!(report.published(), 1);
        assert_eq!(next(&mut contexts).await, Some(context));
    }

    async fn what_is_no_context_is_passed_on_and_harms_nothing(fixture) {
        let queue = fixture.queue("foreign").await;
        let (_consumer, mut contexts) = traced(&fixture, &queue, |message| async move {
            let kept = message.headers().get("traceparent").is_some();
            kept.then_some(()).ok_or("the header is gone").reject()
        })
        .await;
        let publisher = fixture.mq.publisher::<u32>("", queue.as_str());
        let long = "é".repeat(500);
        let odd: [acemq::HeaderValue; 4] =
            ["00-zz".into(), 7.into(), long.as_str().into(), acemq::HeaderValue::Null];
        for value in odd {
            let envelope = Envelope::of("odd").header("traceparent", value);
            TraceContext::start().scope(publisher.send_with(&1, envelope)).await.unwrap();
            assert_eq!(next(&mut contexts).await, None);
        }
        assert_eq!(fixture.mq.queue_length(&format!("{queue}.dlq")).await.unwrap(), Some(0));
    }
}

#[tokio::test]
async fn each_message_of_a_batch_has_its_own_context() {
    use acemq::{SqliteIdempotencyStore, Work};
    use sqlx::Sqlite;

    let fixture = Arc::new(Fixture::on(crate::support::Broker::Memory).await);
    let queue = fixture.queue("batched").await;
    let pool =
        SqlitePoolOptions::new().max_connections(2).connect("sqlite::memory:").await.unwrap();
    let inbox = SqliteIdempotencyStore::new(pool);
    inbox.migrate().await.unwrap();
    let publisher = fixture.mq.publisher::<u32>("", queue.as_str());
    let mut sent = Vec::new();
    for number in 0..20 {
        let context = TraceContext::start();
        context.clone().scope(publisher.send(&number)).await.unwrap();
        sent.push((number, Some(context)));
    }
    let (seen, mut contexts) = mpsc::unbounded_channel();
    let _consumer = fixture
        .mq
        .consumer::<u32>(queue.as_str())
        .transactional(inbox)
        .batched(10)
        .start(move |work: Work<u32, Sqlite>| {
            let _ = seen.send((*work.payload(), TraceContext::current()));
            async move { Ok(work.commit().await?) }
        })
        .await
        .unwrap();
    let mut handled = Vec::new();
    while handled.len() < sent.len() {
        handled.push(soon("a message", contexts.recv()).await.unwrap());
    }
    handled.sort_by_key(|(number, _)| *number);
    assert_eq!(handled, sent);
}
