//! Slips that travel back: what was done is undone in reverse.

use std::time::Duration;

use acemq::{Envelope, Forward, HandlerError, Itinerary, Message, RetryPolicy, SlipStop};
use tokio::sync::mpsc;

use crate::{
    submit,
    support::{Fixture, eventually, soon},
};

type Log = mpsc::UnboundedSender<String>;

async fn booking(fx: &Fixture, queue: &str, undo: &str, log: Log) -> SlipStop {
    let (name, undo) = (queue.to_owned(), undo.to_owned());
    let stop = fx.mq.stop(queue, move |message: Message<u64>| {
        let (log, name, undo) = (log.clone(), name.clone(), undo.clone());
        async move {
            log.send(format!("do {name}")).map_err(HandlerError::retry)?;
            Ok(Forward::unchanged().undo_at("", undo, format!("booking {}", message.payload())))
        }
    });
    stop.await.unwrap()
}

async fn cancelling(fx: &Fixture, queue: &str, log: Log) -> SlipStop {
    let name = queue.to_owned();
    let undo = fx.mq.slip_stop::<u64>(queue).start_undo(move |message: Message<u64>| {
        let data = SlipStop::undo_data(&message).unwrap_or_default().to_owned();
        let told = log.send(format!("undo at {name}: {data}"));
        async move { told.map_err(HandlerError::retry) }
    });
    undo.await.unwrap()
}

on_both_brokers! {
    async fn a_failure_undoes_what_was_done_in_reverse_and_stays_in_the_dead_letters(fx) {
        let names = ["hotel", "flight", "hotel.undo", "flight.undo", "pay"];
        let mut queues = Vec::new();
        for name in names {
            queues.push(fx.queue(name).await);
        }
        let [hotel, flight, hotel_undo, flight_undo, pay] = &queues[..] else { panic!("five") };
        let (log, mut told) = mpsc::unbounded_channel();
        let _hotel = booking(&fx, hotel, hotel_undo, log.clone()).await;
        let _flight = booking(&fx, flight, flight_undo, log.clone()).await;
        let last = cancelling(&fx, hotel_undo, log.clone()).await;
        let first = cancelling(&fx, flight_undo, log.clone()).await;
        let paying = fx
            .mq
            .slip_stop::<u64>(pay.as_str())
            .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
            .start(|message: Message<u64>| async move {
                match message.payload() {
                    1 => Err(HandlerError::retry("the bank is closed")),
                    2 => Err(HandlerError::reject("no money")),
                    3 => panic!("a bug"),
                    _ => Ok(Forward::unchanged()),
                }
            })
            .await
            .unwrap();
        let route = Itinerary::new()
            .then_named("hotel", "", hotel.as_str())
            .then_named("flight", "", flight.as_str())
            .then_named("pay", "", pay.as_str());
        for payload in [1, 2, 3] {
            submit(&fx, &route, payload, Envelope::new()).await;
            let mut happened = Vec::new();
            while happened.len() < 4 {
                happened.push(soon("the way there and back", told.recv()).await.unwrap());
            }
            assert_eq!(
                happened,
                [
                    format!("do {hotel}"),
                    format!("do {flight}"),
                    format!("undo at {flight_undo}: booking {payload}"),
                    format!("undo at {hotel_undo}: booking {payload}"),
                ]
            );
            fx.until_length(&format!("{pay}.dlq"), payload).await;
        }
        submit(&fx, &route, 4, Envelope::new()).await;
        eventually("the end", async || paying.stats().completed == 1).await;
        eventually("the ways back to begin", async || paying.stats().sent_back == 3).await;
        eventually("the way back", async || last.stats().completed == 3).await;
        eventually("the way back to be counted", async || first.stats().sent_back == 3).await;
        assert_eq!(first.stats().completed, 0);
    }

    async fn a_place_that_undoes_and_is_gone_is_told_and_nothing_loops(fx) {
        let (hotel, pay) = (fx.queue("hotel").await, fx.queue("pay").await);
        let gone = fx.name("gone");
        let (log, mut told) = mpsc::unbounded_channel();
        let _hotel = booking(&fx, &hotel, &gone, log).await;
        let paying = fx
            .mq
            .stop(pay.as_str(), |_: Message<u64>| async {
                Err::<Forward, _>(HandlerError::reject("no money"))
            })
            .await
            .unwrap();
        let route = Itinerary::new().then("", hotel.as_str()).then("", pay.as_str());
        submit(&fx, &route, 1, Envelope::new()).await;
        soon("the hotel", told.recv()).await.unwrap();
        fx.until_length(&format!("{pay}.dlq"), 1).await;
        assert_eq!(paying.stats().sent_back, 0);
    }

    async fn a_stop_that_did_its_work_and_cannot_send_on_is_undone_as_well(fx) {
        let (hotel, flight) = (fx.queue("hotel").await, fx.queue("flight").await);
        let (hotel_undo, flight_undo) = (fx.queue("hotel.undo").await, fx.queue("flight.undo").await);
        let missing = fx.name("missing");
        let (log, mut told) = mpsc::unbounded_channel();
        let _hotel = booking(&fx, &hotel, &hotel_undo, log.clone()).await;
        let (first, second) = (
            cancelling(&fx, &flight_undo, log.clone()).await,
            cancelling(&fx, &hotel_undo, log.clone()).await,
        );
        let undo = flight_undo.clone();
        let booked = fx
            .mq
            .slip_stop::<u64>(flight.as_str())
            .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
            .start(move |_: Message<u64>| {
                let undo = undo.clone();
                async move { Ok(Forward::unchanged().undo_at("", undo, "seat 7")) }
            })
            .await
            .unwrap();
        let route = Itinerary::new()
            .then("", hotel.as_str())
            .then("", flight.as_str())
            .then("", missing.as_str());
        submit(&fx, &route, 1, Envelope::new()).await;
        let mut happened = Vec::new();
        while happened.len() < 3 {
            happened.push(soon("the way there and back", told.recv()).await.unwrap());
        }
        assert_eq!(
            happened,
            [
                format!("do {hotel}"),
                format!("undo at {flight_undo}: seat 7"),
                format!("undo at {hotel_undo}: booking 1"),
            ]
        );
        fx.until_length(&format!("{flight}.dlq"), 1).await;
        eventually("the way back", async || second.stats().completed == 1).await;
        eventually("the way back to be counted", async || {
            (booked.stats().sent_back, first.stats().sent_back) == (1, 1)
        })
        .await;
    }

    async fn an_undo_that_fails_stops_no_other(fx) {
        let (hotel, flight, pay) =
            (fx.queue("hotel").await, fx.queue("flight").await, fx.queue("pay").await);
        let (hotel_undo, flight_undo) = (fx.queue("hotel.undo").await, fx.queue("flight.undo").await);
        let (log, mut told) = mpsc::unbounded_channel();
        let _stops = (
            booking(&fx, &hotel, &hotel_undo, log.clone()).await,
            booking(&fx, &flight, &flight_undo, log.clone()).await,
        );
        let last = cancelling(&fx, &hotel_undo, log).await;
        let failing = fx
            .mq
            .slip_stop::<u64>(flight_undo.as_str())
            .retry(RetryPolicy::fixed(2, Duration::from_millis(1)))
            .start_undo(|message: Message<u64>| async move {
                match message.payload() {
                    1 => Err(HandlerError::retry("the airline is closed")),
                    2 => Err(HandlerError::reject("no such seat")),
                    3 => Err(HandlerError::park("look at this")),
                    _ => panic!("a bug"),
                }
            })
            .await
            .unwrap();
        let _pay = fx
            .mq
            .stop(pay.as_str(), |_: Message<u64>| async {
                Err::<Forward, _>(HandlerError::reject("no money"))
            })
            .await
            .unwrap();
        let route = Itinerary::new()
            .then("", hotel.as_str())
            .then("", flight.as_str())
            .then("", pay.as_str());
        for payload in 1..=4 {
            submit(&fx, &route, payload, Envelope::new()).await;
            let undone = format!("undo at {hotel_undo}: booking {payload}");
            while soon("the way back", told.recv()).await.unwrap() != undone {}
        }
        // What could not be undone waits for a person, and is nowhere twice.
        fx.until_length(&format!("{flight_undo}.dlq"), 3).await;
        fx.until_length(&format!("{flight_undo}.parked"), 1).await;
        eventually("the way back", async || last.stats().completed == 4).await;
        eventually("the way back to be counted", async || failing.stats().sent_back == 4).await;
        assert_eq!(failing.stats().completed, 0);
    }
}
