//! Many callers, while the connection is cut again and again.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use acemq::RequestError;

use crate::{Line, answer_to, ask, responder, support::eventually, until_empty};

const TASKS: usize = 200;
const CUTS: usize = 10;

/// `ACEMQ_STORM_CALLS` makes it longer; 100,000 is the full length.
fn calls() -> usize {
    std::env::var("ACEMQ_STORM_CALLS").map_or(5_000, |calls| calls.parse().unwrap())
}

on_both_brokers! {
    async fn every_call_ends_with_its_own_answer_or_an_error_while_the_connection_is_cut(fx) {
        let queue = fx.queue("requests").await;
        let _responder = responder(&fx.mq, &queue).await;
        let line = Line::to(&fx).await;
        let requester = line.mq.requester().await.unwrap();
        let ended = Arc::new(AtomicUsize::new(0));
        let each = calls() / TASKS;
        let tasks: Vec<_> = (0..TASKS).map(|task| {
            let (requester, queue, ended) = (requester.clone(), queue.clone(), ended.clone());
            tokio::spawn(async move {
                let mut lost = 0;
                for call in 0..each {
                    let question = (task * each + call) as u64;
                    match ask(&requester, &queue, question).await {
                        Ok(answer) => assert_eq!(answer, answer_to(question), "the answer to another"),
                        Err(RequestError::ConnectionLost) => lost += 1,
                        Err(other) => panic!("{other:?}"),
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                lost
            })
        }).collect();
        let total = each * TASKS;
        for cut in 1..=CUTS {
            let mark = total * cut / (CUTS + 1);
            eventually("calls to end", async || ended.load(Ordering::Relaxed) >= mark).await;
            line.cut();
        }
        let mut lost = 0;
        for task in tasks {
            lost += task.await.unwrap();
        }
        until_empty(&requester).await;
        let stats = requester.stats();
        println!("{total} calls, {lost} lost: {stats:?}");
        assert_eq!(stats.answered + stats.failed, total as u64);
        assert_eq!((stats.failed, stats.timed_out, stats.cancelled), (lost, 0, 0));
        line.mq.close().await;
    }
}
