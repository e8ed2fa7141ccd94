//! One message that fails, under each policy.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use acemq::{HandlerError, HandlerResult, Message, OnFailure, OrderedQueue, PartitionState, Then};

use crate::{
    Event, event, name, ordered,
    support::{Fixture, eventually},
};

type Handled = Arc<Mutex<Vec<Event>>>;

struct Ledger {
    queue: OrderedQueue<Event>,
    handled: Handled,
    mended: Arc<AtomicBool>,
}

/// A queue whose message 3 of the key `bad` fails until it is mended.
async fn failing(fx: &Fixture, name: &str, policy: OnFailure, how: &'static str) -> Ledger {
    let (handled, mended) = (Handled::default(), Arc::new(AtomicBool::new(false)));
    let (ledger, is_mended) = (Arc::clone(&handled), Arc::clone(&mended));
    let queue = ordered(&fx.mq, name)
        .prefetch(10)
        .on_failure(policy)
        .consume(move |event: Message<Event>| {
            let (ledger, mended) = (Arc::clone(&ledger), is_mended.load(Ordering::SeqCst));
            async move {
                let event = event.into_payload();
                if event == crate::event("bad", 3) && !mended {
                    return fail(how);
                }
                ledger.lock().unwrap().push(event);
                Ok(())
            }
        })
        .await
        .unwrap();
    Ledger { queue, handled, mended }
}

fn fail(how: &str) -> HandlerResult {
    match how {
        "panics" => panic!("ouch"),
        "rejects" => Err(HandlerError::reject("never")),
        "parks" => Err(HandlerError::park("look at it")),
        _ => Err(HandlerError::retry("not now")),
    }
}

impl Ledger {
    /// Ten messages of the bad key, and ten of another key in another partition.
    async fn fill(&self) {
        for number in 0..10 {
            self.queue.send(&event("bad", number)).await.unwrap();
            self.queue.send(&event(self.other(), number)).await.unwrap();
        }
    }

    fn other(&self) -> String {
        let bad = self.queue.queue_for("bad").unwrap();
        let mut names = (0..).map(|number| format!("good{number}"));
        names.find(|key| self.queue.queue_for(key).unwrap() != bad).unwrap()
    }

    fn numbers(&self, key: &str) -> Vec<u64> {
        let handled = self.handled.lock().unwrap();
        handled.iter().filter(|event| event.key == key).map(|event| event.number).collect()
    }

    async fn until_numbers(&self, key: &str, numbers: &[u64]) {
        eventually(&format!("{key} to be {numbers:?}"), async || self.numbers(key) == numbers)
            .await;
    }
}

const ALL: [u64; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
const WITHOUT: [u64; 9] = [0, 1, 2, 4, 5, 6, 7, 8, 9];

on_both_brokers! {
    async fn stop_halts_the_partition_visibly_and_resume_goes_on_with_the_message(fx) {
        for how in ["fails", "panics"] {
            let name = name(&fx);
            let ledger = failing(&fx, &name, OnFailure::Stop, how).await;
            ledger.fill().await;
            ledger.until_numbers(&ledger.other(), &ALL).await;
            eventually("the halt", async || !ledger.queue.halted_partitions().is_empty()).await;
            assert_eq!(ledger.numbers("bad"), [0, 1, 2], "nothing behind it is handled");
            let [halted] = ledger.queue.halted_partitions()[..] else { panic!("one") };
            let state = ledger.queue.stats()[halted as usize].state.clone();
            assert!(matches!(&state, PartitionState::Halted { reason } if reason.contains("message")), "{state:?}");
            let told = fx.mq.health().await;
            assert_eq!(told.status, acemq::HealthStatus::Degraded);
            let told = told.troubled().next().unwrap();
            assert_eq!((told.kind.as_str(), &told.name), ("ordered", &name));
            assert_eq!(told.details["halted"], serde_json::json!([halted]));
            // All of it is in the queue, the failing one first.
            fx.until_length(&ledger.queue.queue_for("bad").unwrap(), 7).await;
            assert!(!ledger.queue.resume(halted + 100) && !ledger.queue.resume((halted + 1) % 4));

            assert!(ledger.queue.resume(halted), "still broken: it halts again");
            eventually("the second halt", async || {
                ledger.queue.halted_partitions() == [halted] && ledger.numbers("bad") == [0, 1, 2]
            })
            .await;
            ledger.mended.store(true, Ordering::SeqCst);
            eventually("the resume", async || {
                let _ = ledger.queue.resume(halted);
                ledger.numbers("bad") == ALL
            })
            .await;
            assert!(ledger.queue.halted_partitions().is_empty());
            assert_eq!(fx.mq.health().await.status, acemq::HealthStatus::Up);
            assert!(ledger.queue.close().await.is_complete());
        }
    }

    async fn retry_in_place_lets_nothing_overtake_and_then_stops_or_skips(fx) {
        for then in [Then::Stop, Then::Skip] {
            let name = name(&fx);
            let policy =
                OnFailure::RetryInPlace { attempts: 4, delay: Duration::from_millis(5), then };
            let ledger = failing(&fx, &name, policy, "fails").await;
            ledger.fill().await;
            ledger.until_numbers(&ledger.other(), &ALL).await;
            match then {
                Then::Stop => {
                    eventually("the halt", async || !ledger.queue.halted_partitions().is_empty()).await;
                    assert_eq!(ledger.numbers("bad"), [0, 1, 2]);
                }
                _ => ledger.until_numbers("bad", &WITHOUT).await,
            }
            let retried: u64 = ledger.queue.stats().iter().map(|of| of.retried).sum();
            assert_eq!(retried, 3);
            let _ = ledger.queue.close().await;
        }
    }

    async fn skip_sets_the_message_aside_and_goes_on(fx) {
        for (how, policy, aside) in [
            ("fails", OnFailure::Skip, "dlq"),
            ("panics", OnFailure::Skip, "dlq"),
            ("rejects", OnFailure::Stop, "dlq"),
            ("parks", OnFailure::Stop, "parked"),
        ] {
            let name = name(&fx);
            let ledger = failing(&fx, &name, policy, how).await;
            ledger.fill().await;
            ledger.until_numbers("bad", &WITHOUT).await;
            let queue = ledger.queue.queue_for("bad").unwrap();
            fx.until_length(&format!("{queue}.{aside}"), 1).await;
            eventually("the count", async || {
                let stats = ledger.queue.stats();
                stats.iter().map(|of| of.skipped + of.parked).sum::<u64>() == 1
            })
            .await;
            let _ = ledger.queue.close().await;
        }
    }

    async fn a_body_that_cannot_be_read_is_parked_and_leaves_a_gap(fx) {
        let name = name(&fx);
        let ledger = failing(&fx, &name, OnFailure::Stop, "fails").await;
        let queue = ledger.queue.queue_for("good").unwrap();
        ledger.queue.send(&event("good", 1)).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).send(&7).await.unwrap();
        ledger.queue.send(&event("good", 2)).await.unwrap();
        ledger.until_numbers("good", &[1, 2]).await;
        fx.until_length(&format!("{queue}.parked"), 1).await;
    }

    async fn a_close_waits_for_the_handler_and_gives_the_rest_back_in_order(fx) {
        let name = name(&fx);
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (opened, begun) = (Arc::clone(&gate), Arc::new(tokio::sync::Semaphore::new(0)));
        let (told, handled) = (Arc::clone(&begun), Handled::default());
        let ledger = Arc::clone(&handled);
        let first = ordered(&fx.mq, &name)
            .prefetch(10)
            .consume(move |event: Message<Event>| {
                let (gate, begun, ledger) = (Arc::clone(&opened), Arc::clone(&told), Arc::clone(&ledger));
                async move {
                    begun.add_permits(1);
                    gate.acquire().await.map_err(HandlerError::retry)?.forget();
                    ledger.lock().unwrap().push(event.into_payload());
                    Ok(())
                }
            })
            .await
            .unwrap();
        for number in 0..10 {
            first.send(&event("key", number)).await.unwrap();
        }
        begun.acquire().await.unwrap().forget();
        // Asked for before the handler may go on: else it goes on with the next message.
        let mut closing = std::pin::pin!(first.close());
        assert!(futures::poll!(&mut closing).is_pending());
        gate.add_permits(1);
        assert!(closing.await.is_complete());
        assert_eq!(*handled.lock().unwrap(), [event("key", 0)]);
        fx.until_length(&first.queue_for("key").unwrap(), 9).await;
        let rest = failing(&fx, &name, OnFailure::Stop, "fails").await;
        rest.until_numbers("key", &[1, 2, 3, 4, 5, 6, 7, 8, 9]).await;
    }
}
