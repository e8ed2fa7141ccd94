//! Connections, reply queues and responders that go away with calls in flight.

use std::time::Duration;

use acemq::{AceMq, RequestError, testing::MemoryBroker};
use tokio::sync::mpsc;

use crate::{
    Gated, LONG, Line, answer_to, ask, responder,
    support::{eventually, soon, unique, until_ready},
    until_empty,
};

on_both_brokers! {
    async fn a_reply_queue_that_is_gone_fails_its_calls_and_another_takes_its_place(fx) {
        let queue = fx.queue("requests").await;
        let mut gated = Gated::on(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        for round in 0..20 {
            let before = requester.reply_queue().unwrap();
            let waiting = requester.start::<_, u64>("", &queue, &round, LONG).await.unwrap();
            let many = requester.request_many::<_, u64>("", &queue, &round, 3, LONG).await.unwrap();
            gated.arrival().await;
            gated.arrival().await;
            fx.mq.delete_queue(&before).await.unwrap();
            assert!(matches!(soon("the loss", waiting).await, Err(RequestError::ConnectionLost)));
            let gathered: Vec<_> = soon("the loss", futures::StreamExt::collect(many)).await;
            assert!(matches!(gathered[..], [Err(RequestError::ConnectionLost)]), "{gathered:?}");
            // The answers to what was lost, and the one to what is asked now.
            gated.gate.add_permits(3);
            assert_eq!(ask(&requester, &queue, 100 + round).await.unwrap(), answer_to(100 + round));
            gated.arrival().await;
            assert_ne!(requester.reply_queue().unwrap(), before);
            assert_eq!(fx.mq.queue_length(&before).await.unwrap(), None);
        }
        until_empty(&requester).await;
        requester.close().await;
    }

    async fn calls_in_flight_get_their_answers_after_a_lost_connection(fx) {
        let queue = fx.queue("requests").await;
        let mut gated = Gated::on(&fx.mq, &queue).await;
        let line = Line::to(&fx).await;
        let requester = line.mq.requester().await.unwrap();
        let reply_queue = requester.reply_queue();
        for round in 0..5 {
            let mut waiting = Vec::new();
            for question in 0..20 {
                // Confirmed: what is lost now is the wait only.
                waiting.push((question, requester.start::<_, u64>("", &queue, &question, LONG).await.unwrap()));
                gated.arrival().await;
            }
            line.cut();
            gated.gate.add_permits(20);
            for (question, call) in waiting {
                // On the in-process broker the responder was cut too, and works once more.
                let answer = async {
                    tokio::select! {
                        answer = call => answer,
                        () = async { loop { gated.arrival().await; gated.gate.add_permits(1); } } => unreachable!(),
                    }
                };
                assert_eq!(soon("the answer", answer).await.unwrap(), answer_to(question), "round {round}");
            }
            until_ready(&line.mq).await;
            gated.gate.add_permits(50);
            assert_eq!(ask(&requester, &queue, 7).await.unwrap(), answer_to(7));
            gated.gate.forget_permits(1000);
            gated.drain();
        }
        assert_eq!(requester.reply_queue(), reply_queue, "the queue outlives its connection");
        until_empty(&requester).await;
        line.mq.close().await;
    }

    async fn a_request_whose_responder_is_killed_is_answered_by_the_next(fx) {
        let queue = fx.queue("requests").await;
        let requester = fx.mq.requester().await.unwrap();
        for round in 0..5 {
            let doomed = fx.options().shutdown_timeout(Duration::ZERO).connect().await.unwrap();
            let (arrive, mut arrived) = mpsc::unbounded_channel();
            let stuck = doomed.respond(queue.as_str(), move |question: u64| {
                let _ = arrive.send(question);
                std::future::pending::<Result<u64, std::io::Error>>()
            }).await.unwrap();
            let waiting = requester.start::<_, u64>("", &queue, &round, LONG).await.unwrap();
            assert_eq!(soon("the request", arrived.recv()).await, Some(round));
            soon("the end of the responder", doomed.close()).await;
            drop(stuck);
            let (seen, mut redelivered) = mpsc::unbounded_channel();
            let next = fx.mq.responder(queue.as_str()).start_with_message(move |message: acemq::Message<u64>| {
                let _ = seen.send(message.is_redelivered());
                async move { Ok::<_, std::io::Error>(answer_to(*message.payload())) }
            }).await.unwrap();
            assert_eq!(soon("the answer", waiting).await.unwrap(), answer_to(round));
            assert_eq!(redelivered.recv().await, Some(true));
            next.close().await;
        }
        assert_eq!(requester.stats().in_flight, 0);
        requester.close().await;
    }

    async fn the_first_request_after_a_lost_connection_succeeds(fx) {
        let queue = fx.queue("requests").await;
        let line = Line::to(&fx).await;
        let requester = line.mq.requester().await.unwrap();
        let _responder = responder(&line.mq, &queue).await;
        for round in 0..20 {
            let lost = crate::support::record_states(&line.mq);
            line.cut();
            eventually("the loss", async || {
                lost.lock().unwrap().iter().any(|state| matches!(state, acemq::ConnectionState::Reconnecting(_)))
            }).await;
            until_ready(&line.mq).await;
            assert_eq!(ask(&requester, &queue, round).await.unwrap(), answer_to(round));
        }
        line.mq.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_cut_off_before_its_confirm_is_of_unknown_outcome() {
    let url = format!("memory://{}", unique("broker"));
    let (mq, broker) = (AceMq::connect(url.as_str()).await.unwrap(), MemoryBroker::of(&url));
    mq.declare(&acemq::Topology::new().queue(acemq::Queue::new("q"))).await.unwrap();
    let requester = mq.requester().await.unwrap();
    broker.hold_confirms(true);
    let (asked, ()) = tokio::join!(requester.request::<_, u64>("", "q", &1, LONG), async {
        eventually("the publish", async || broker.unconfirmed() == 1).await;
        broker.disconnect_all("a cable was pulled");
    });
    let error = asked.unwrap_err();
    assert!(matches!(error, RequestError::ConnectionLost) && error.may_have_been_handled());
    assert_eq!(broker.messages("q").len(), 1);
    assert_eq!(requester.stats().in_flight, 0);
    mq.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_queue_that_expired_during_an_outage_fails_its_calls() {
    let url = format!("memory://{}", unique("broker"));
    let (mq, broker) = (AceMq::connect(url.as_str()).await.unwrap(), MemoryBroker::of(&url));
    mq.declare(&acemq::Topology::new().queue(acemq::Queue::new("q"))).await.unwrap();
    let requester = mq.requester().await.unwrap();
    let before = requester.reply_queue().unwrap();
    let waiting = requester.start::<_, u64>("", "q", &1, Duration::from_hours(2)).await.unwrap();
    broker.refuse_connections(true);
    broker.disconnect_all("gone");
    tokio::time::advance(Duration::from_mins(11)).await;
    eventually("the expiry", async || !broker.queue_names().contains(&before)).await;
    // Meanwhile nothing can be sent, and it says so.
    let meanwhile = requester.request::<_, u64>("", "q", &1, Duration::from_secs(5)).await;
    assert!(matches!(meanwhile, Err(RequestError::NotSent(acemq::Error::Disconnected { .. }))));
    broker.refuse_connections(false);
    assert!(matches!(soon("the loss", waiting).await, Err(RequestError::ConnectionLost)));
    let _responder = responder(&mq, "q").await;
    assert_eq!(ask(&requester, "q", 9).await.unwrap(), answer_to(9));
    assert_ne!(requester.reply_queue().unwrap(), before);
    mq.close().await;
}
