//! Responder processes that are killed with requests in hand.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::AceMq;

use crate::{
    LONG, answer_to,
    support::{Broker, amqp_url, eventually, run, soon},
    until_empty,
};

const CALLERS: usize = 20;
const CALLS: usize = 40;
const KILLS: usize = 6;

/// A responder in a process of its own; dropping it kills the process.
struct Responding(Child);

impl Responding {
    fn spawn(queue: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["killed::child", "--exact", "--ignored", "--nocapture"])
            .env("ACEMQ_CHILD", queue)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Responding {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_although_responders_are_killed_with_requests_in_hand() {
    run(Broker::RabbitMq, |fx| async move {
        let queue = fx.queue("requests").await;
        let requester = fx.mq.requester().await.unwrap();
        let mut responders: Vec<Responding> = (0..2).map(|_| Responding::spawn(&queue)).collect();
        let answered = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (requester, queue) = (requester.clone(), queue.clone());
                let answered = Arc::clone(&answered);
                tokio::spawn(async move {
                    for call in 0..CALLS {
                        let question = (caller * CALLS + call) as u64;
                        // A killed responder costs time, not an answer: the next one works on it.
                        let asking = requester.request::<_, u64>("", &queue, &question, 2 * LONG);
                        assert_eq!(asking.await.unwrap(), answer_to(question));
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for kill in 1..=KILLS {
            let mark = CALLERS * CALLS * kill / (KILLS + 1);
            eventually("calls to be answered", async || answered.load(Ordering::Relaxed) >= mark)
                .await;
            responders[kill % 2] = Responding::spawn(&queue);
        }
        for caller in callers {
            soon("a caller", caller).await.unwrap();
        }
        let stats = requester.stats();
        assert_eq!(stats.answered, (CALLERS * CALLS) as u64, "{stats:?}");
        assert_eq!((stats.failed, stats.timed_out), (0, 0), "{stats:?}");
        until_empty(&requester).await;
        // The last ones may be killed between a confirmed reply and the acknowledgement of its
        // request; it is one more responder's then.
        drop(responders);
        let _last = Responding::spawn(&queue);
        fx.until_length(&queue, 0).await;
        requester.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the responder process of the kill test, which starts it by its name"]
async fn child() {
    let queue = std::env::var("ACEMQ_CHILD").expect("only the kill test starts this");
    let mq = AceMq::connect(amqp_url()).await.unwrap();
    let _responder = mq
        .responder(queue)
        .prefetch(10)
        .concurrency(10)
        .start(|question: u64| async move {
            // Long enough to be killed in the middle.
            tokio::time::sleep(Duration::from_millis(question % 20)).await;
            Ok::<_, std::convert::Infallible>(answer_to(question))
        })
        .await
        .unwrap();
    std::future::pending::<()>().await;
}
