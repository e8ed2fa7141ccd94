//! B108: a broker that is short of memory blocks publishers, and nothing else.

use std::time::{Duration, Instant};

use acemq::{AceMq, ConnectionState, Error, HandlerError, Publisher};

use crate::{
    alone,
    support::{
        Broker, Fixture, Inbox, eventually,
        rabbitmqctl::{Restore, rabbitmqctl},
        record_states, soon, until_ready,
    },
};

const WATERMARK: &str = "vm_memory_high_watermark";

/// Raises the alarm; it ends with the returned value.
async fn alarm() -> Restore {
    let known = rabbitmqctl(&["eval", &format!("application:get_env(rabbit, {WATERMARK}).")]).await;
    let value = known.trim().strip_prefix("{ok,").and_then(|rest| rest.strip_suffix('}'));
    let value = value.unwrap_or_else(|| panic!("no watermark in `{known}`"));
    let restore = format!("vm_memory_monitor:set_{WATERMARK}({value}).");
    let restore = Restore::by(&["eval", &restore]);
    rabbitmqctl(&[&format!("set_{WATERMARK}"), "absolute", "1"]).await;
    restore
}

/// Publishes until the broker has told the connection that it blocks it. Returns how many of the
/// messages are under way.
async fn until_blocked(mq: &AceMq, publisher: &Publisher<u32>) -> u64 {
    let impatient = publisher.clone().confirm_timeout(Duration::from_millis(500));
    for under_way in 0..5 {
        match impatient.send(&100).await {
            Err(Error::ConfirmTimeout { .. }) => {}
            Err(Error::Blocked { reason }) => {
                assert_eq!(mq.state(), ConnectionState::Blocked(reason));
                return under_way;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("never blocked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_alarm_fails_publishes_at_once_and_consumers_go_on() {
    let _alone = alone();
    let fx = Fixture::on(Broker::RabbitMq).await;
    let queue = fx.queue("orders").await;
    let options = || fx.options().shutdown_timeout(Duration::from_secs(2));
    // A short heartbeat: blocked is not dead.
    let mq = options().heartbeat(Duration::from_secs(1)).connect().await.unwrap();
    let publisher = mq.publisher::<u32>("", queue.as_str());
    let numbers: Vec<u32> = (0..50).collect();
    assert_eq!(publisher.send_all(&numbers).await.confirmed(), 50);
    let leaving = options().connect().await.unwrap();
    let patient = options().wait_when_blocked(true).connect().await.unwrap();
    let states = record_states(&mq);

    let raised = alarm().await;
    let mut under_way = until_blocked(&mq, &publisher).await;
    assert!((1..=2).contains(&under_way), "{under_way} publishes before the block was known");
    let started = Instant::now();
    for number in 0..20 {
        let error = publisher.send(&number).await.unwrap_err();
        assert!(matches!(error, Error::Blocked { .. }), "{error:?}");
        assert!(!error.may_have_been_published() && error.is_retryable());
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());

    // Consuming is on the other connection, or the alarm could never end.
    let mut inbox = Inbox::of(&mq, &queue).await;
    for _ in 0..50 {
        inbox.next().await;
    }
    eventually("all to be acknowledged", async || inbox.consumer.stats().acked == 50).await;

    // A close under the alarm is bounded.
    let goodbye = leaving.publisher::<u32>("", queue.as_str());
    under_way += until_blocked(&leaving, &goodbye).await;
    let closing = Instant::now();
    soon("the close", leaving.close()).await;
    assert!(closing.elapsed() < Duration::from_secs(8), "{:?}", closing.elapsed());

    // Whoever asked for it waits.
    let waiting = patient.publisher::<u32>("", queue.as_str());
    under_way += until_blocked_patiently(&patient, &waiting).await;
    let waits = {
        let waiting = waiting.clone();
        tokio::spawn(async move { waiting.send(&7).await })
    };
    assert!(mq.state() != ConnectionState::Ready && !waits.is_finished());

    drop(raised);
    soon("the patient send", waits).await.unwrap().unwrap();
    until_ready(&mq).await;
    publisher.send(&8).await.unwrap();
    // What was under way when the block came arrives now; what the closed handle sent may not.
    let mut arrived = 0;
    eventually("the rest", async || inbox.consumer.stats().acked >= 52).await;
    while arrived < 2 {
        let body = inbox.next().await.body().clone();
        arrived += u64::from(body == "7" || body == "8");
    }
    assert!(inbox.consumer.stats().acked <= 52 + under_way);
    let losses = states.lock().unwrap().iter().filter(|s| is_a_loss(s)).count();
    assert_eq!(losses, 0, "a blocked connection was taken for a dead one");
    let _ = tokio::join!(mq.close(), patient.close());
    fx.clean_up().await;
}

/// As [`until_blocked`], where a blocked publish waits for its time.
async fn until_blocked_patiently(mq: &AceMq, publisher: &Publisher<u32>) -> u64 {
    let impatient = publisher.clone().confirm_timeout(Duration::from_millis(500));
    let mut under_way = 0;
    while !matches!(mq.state(), ConnectionState::Blocked(_)) {
        assert!(impatient.send(&100).await.is_err());
        under_way += 1;
    }
    let error = impatient.send(&100).await.unwrap_err();
    assert!(matches!(error, Error::Blocked { .. }), "{error:?}");
    under_way
}

fn is_a_loss(state: &ConnectionState) -> bool {
    matches!(state, ConnectionState::Reconnecting(_))
}

/// The copy cannot be published, so the original stays, until it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_set_aside_under_an_alarm_stays_and_is_set_aside_after_it() {
    let _alone = alone();
    let fx = Fixture::on(Broker::RabbitMq).await;
    let queue = fx.queue("orders").await;
    let mq = fx.options().confirm_timeout(Duration::from_secs(1)).connect().await.unwrap();
    let publisher = mq.publisher::<u32>("", queue.as_str());
    for number in 0..5 {
        publisher.send(&number).await.unwrap();
    }
    let raised = alarm().await;
    let consumer = mq
        .consumer::<u32>(queue.as_str())
        .start(|_| async { Err(HandlerError::reject("never")) })
        .await
        .unwrap();
    eventually("the copies to fail", async || consumer.stats().set_aside_failed >= 5).await;
    assert_eq!(consumer.stats().dead_lettered, 0);

    drop(raised);
    // A copy whose confirm did not come in time may be there twice; none is missing.
    eventually("all to be set aside", async || {
        mq.queue_length(&queue).await.unwrap() == Some(0) && consumer.stats().dead_lettered >= 5
    })
    .await;
    let mut dead = Inbox::of(&mq, &format!("{queue}.dlq")).await;
    let mut missing = vec!["0", "1", "2", "3", "4"];
    while !missing.is_empty() {
        let body = dead.next().await.body().clone();
        missing.retain(|number| body != *number);
    }
    let _ = mq.close().await;
    fx.clean_up().await;
}
