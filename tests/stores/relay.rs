//! What the relay does with records, whatever the database and the target.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use acemq::{
    Error,
    outbox::{OutboxRelay, OutboxStore, RetryDelay, RunningRelay},
};

use crate::{
    db::{Db, on_every_database},
    outbox::{LEASE, add, record},
    target::{Flaky, Target, nacked, name, outage},
};

/// Waits until an answer of the database satisfies `condition`; fails after 20 s.
async fn until<T, F: Future<Output = T>>(ask: impl Fn() -> F, condition: impl Fn(&T) -> bool) -> T {
    let wait = async {
        let mut look = tokio::time::interval(Duration::from_millis(10));
        loop {
            look.tick().await;
            let answer = ask().await;
            if condition(&answer) {
                return answer;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("not within 20 s")
}

fn quick() -> RetryDelay {
    RetryDelay::linear(Duration::from_millis(1), Duration::from_millis(1))
}

const HOUR: Duration = Duration::from_hours(1);

on_every_database!(
    one_pass_publishes_a_batch_and_tells_its_tally,
    what_was_added_is_what_is_published,
    a_drain_goes_on_while_it_makes_progress_and_stops_at_its_ceiling,
    an_outage_spends_no_attempts,
    a_record_that_fails_by_itself_waits_alone,
    poison_retires_while_the_others_flow,
    a_panicking_publish_is_the_records_own_failure,
    a_row_with_spent_attempts_or_unreadable_headers_is_not_published,
    a_started_relay_resumes_after_an_outage_with_all_attempts_left,
    a_wake_up_after_commit_beats_the_poll,
    closing_finishes_the_batch_in_flight,
    dropping_the_handle_stops_the_relay,
    a_dropped_drain_is_finished_in_the_background,
    a_lease_is_renewed_while_a_batch_is_slow,
    quick_records_of_a_slow_batch_are_marked_without_waiting_for_it,
    no_more_than_so_many_publishes_are_in_flight,
    two_relays_keep_the_order_of_each_key,
    a_relay_survives_a_lost_database_and_marks_what_it_had_published,
    a_relay_waits_for_its_table,
    a_running_relay_deletes_published_records_after_the_retention,
);

async fn one_pass_publishes_a_batch_and_tells_its_tally<D: Db>(db: D) {
    add(&db, (0..5).map(|n| record(&n.to_string())).collect()).await;
    let target = Target::answering(|name, _| if name == "1" { Err(nacked()) } else { Ok(()) });
    let relay = OutboxRelay::new(&target, db.outbox()).batch_size(3).max_attempts(1);
    let report = relay.drain_once().await.unwrap();
    assert_eq!((report.claimed(), report.published(), report.failed()), (3, 2, 1));
    assert_eq!((report.retired(), report.released(), report.lost()), (1, 0, 0));
    assert!(report.last_error().unwrap().contains("refused a message"), "{report:?}");
    let report = relay.drain_once().await.unwrap();
    assert_eq!((report.claimed(), report.published(), report.failed()), (2, 2, 0));
    assert_eq!(relay.drain_once().await.unwrap().claimed(), 0);
    let mut names = target.names();
    names.sort();
    assert_eq!(names, ["0", "2", "3", "4"]);
}

async fn what_was_added_is_what_is_published<D: Db>(db: D) {
    let added = record("a").header("x-tenant", 7).message_type("placed").ordering_key("k");
    add(&db, vec![added.clone()]).await;
    let target = Target::new();
    OutboxRelay::new(&target, db.outbox()).drain_once().await.unwrap();
    let sent = &target.published()[0];
    assert_eq!((sent.id(), sent.payload()), (added.id(), added.payload()));
    assert_eq!(sent.content_type(), "text/plain");
    assert_eq!(sent.get_envelope().headers(), added.get_envelope().headers());
    assert_eq!(sent.get_envelope().message_type(), "placed");
}

async fn a_drain_goes_on_while_it_makes_progress_and_stops_at_its_ceiling<D: Db>(db: D) {
    add(&db, (0..7).map(|n| record(&n.to_string())).collect()).await;
    let target = Target::answering(|name, _| if name == "6" { Err(nacked()) } else { Ok(()) });
    let relay = OutboxRelay::new(&target, db.outbox()).batch_size(2);
    assert_eq!(relay.drain(2).await.unwrap().published(), 4);
    let rest = relay.drain(0).await.unwrap();
    assert_eq!((rest.published(), rest.failed()), (2, 1));
    assert_eq!(db.outbox().pending_count().await.unwrap(), 1);
}

async fn an_outage_spends_no_attempts<D: Db>(db: D) {
    add(&db, (0..3).map(|n| record(&n.to_string())).collect()).await;
    let target = Target::new();
    let relay = OutboxRelay::new(&target, db.outbox());
    let outages: [fn() -> Error; 5] = [
        outage,
        || Error::Blocked { reason: "low on memory".into() },
        || Error::Interrupted { reason: "reset".into() },
        || Error::Closed,
        || Error::ConfirmTimeout { waited: LEASE },
    ];
    for error in outages {
        target.answer(move |_, _| Err(error()));
        let report = relay.drain(0).await.unwrap();
        assert_eq!((report.claimed(), report.released(), report.failed()), (3, 3, 0), "{report:?}");
    }
    assert_eq!(db.number("SELECT count(*) FROM {outbox} WHERE attempts > 0").await, 0);
    assert_eq!(db.number("SELECT count(*) FROM {outbox} WHERE lease_until IS NOT NULL").await, 0);

    target.answer(|_, _| Ok(()));
    db.execute(&format!("UPDATE {{outbox}} SET available_at = {}", D::from_now(-1))).await;
    assert_eq!(relay.drain(0).await.unwrap().published(), 3);
}

async fn a_record_that_fails_by_itself_waits_alone<D: Db>(db: D) {
    add(&db, vec![record("bad").ordering_key("k"), record("next").ordering_key("k"), record("ok")])
        .await;
    let target = Target::answering(|name, _| if name == "bad" { Err(nacked()) } else { Ok(()) });
    let relay = OutboxRelay::new(&target, db.outbox());
    relay.drain(0).await.unwrap();
    assert_eq!(target.names(), ["ok"]);
    assert_eq!(target.tries("bad"), 1, "it waits a second before the next attempt");

    target.answer(|_, _| Ok(()));
    db.execute(&format!("UPDATE {{outbox}} SET available_at = {}", D::from_now(-1))).await;
    relay.drain(0).await.unwrap();
    assert_eq!(target.names(), ["ok", "bad", "next"]);
}

async fn poison_retires_while_the_others_flow<D: Db>(db: D) {
    let poison = (0..30).map(|n| record(&format!("poison {n}")));
    let good = (0..50).map(|n| record(&format!("good {n}")));
    add(&db, poison.chain(good).collect()).await;
    let target = Target::answering(|name, _| {
        if name.starts_with("poison") {
            Err(Error::Unroutable {
                exchange: "orders".into(),
                routing_key: "order.placed".into(),
                reason: "NO_ROUTE".into(),
            })
        } else {
            Ok(())
        }
    });
    let relay = OutboxRelay::new(&target, db.outbox())
        .batch_size(10)
        .max_attempts(3)
        .retry_delay(quick())
        .poll_interval(Duration::from_millis(20))
        .start();
    let retired =
        until(|| async { db.outbox().retired(100).await.unwrap() }, |r| r.len() == 30).await;
    until(|| async { relay.published() }, |n| *n == 50).await;
    until(|| async { relay.retired() }, |n| *n == 30).await;
    assert_eq!(relay.failed(), 90);
    assert!(relay.last_error().unwrap().contains("NO_ROUTE"));
    assert!(retired.iter().all(|r| r.attempts == 3 && r.last_error.contains("NO_ROUTE")));
    assert_eq!(target.tries("poison 0"), 3);
    relay.close().await;
}

async fn a_panicking_publish_is_the_records_own_failure<D: Db>(db: D) {
    add(&db, vec![record("bad"), record("ok")]).await;
    let target = Target::answering(|name, _| match name {
        "bad" => std::panic::resume_unwind(Box::new("boom")),
        _ => Ok(()),
    });
    let relay = OutboxRelay::new(&target, db.outbox()).max_attempts(1);
    let report = relay.drain_once().await.unwrap();
    assert_eq!((report.published(), report.failed(), report.retired()), (1, 1, 1));
    assert!(db.outbox().retired(5).await.unwrap()[0].last_error.contains("panicked"));
}

async fn a_row_with_spent_attempts_or_unreadable_headers_is_not_published<D: Db>(db: D) {
    add(&db, vec![record("spent"), record("broken"), record("ok")]).await;
    let first = db.number("SELECT min(seq) FROM {outbox}").await;
    db.execute(&format!("UPDATE {{outbox}} SET attempts = 10 WHERE seq = {first}")).await;
    db.execute(&format!("UPDATE {{outbox}} SET headers = '[' WHERE seq = {}", first + 1)).await;
    let target = Target::new();
    let relay = OutboxRelay::new(&target, db.outbox());
    let report = relay.drain_once().await.unwrap();
    assert_eq!(target.names(), ["ok"]);
    assert_eq!((report.published(), report.failed(), report.retired()), (1, 2, 1));
}

async fn a_started_relay_resumes_after_an_outage_with_all_attempts_left<D: Db>(db: D) {
    add(&db, (0..20).map(|n| record(&n.to_string())).collect()).await;
    let target = Target::answering(|_, _| Err(outage()));
    let relay = OutboxRelay::new(&target, db.outbox()).start();
    until(|| async { relay.last_error() }, |e| e.as_ref().is_some_and(|e| e.contains("connected")))
        .await;
    // How many of the batch are tried before the first answer stops the rest is a matter of luck.
    let tries = |t: &Target| (0..20).map(|n| t.tries(&n.to_string())).sum::<u32>();
    let before = tries(&target);
    target.until(|t| tries(t) >= before + 2).await;
    target.answer(|_, _| Ok(()));
    until(|| async { relay.published() }, |n| *n == 20).await;
    assert_eq!((relay.failed(), relay.lost()), (0, 0));
    assert_eq!(db.number("SELECT count(*) FROM {outbox} WHERE attempts > 0").await, 0);
    relay.close().await;
}

async fn a_wake_up_after_commit_beats_the_poll<D: Db>(db: D) {
    let (target, outbox) = (Target::new(), db.outbox());
    let relay = OutboxRelay::new(&target, outbox.clone()).poll_interval(HOUR).start();
    add(&db, vec![record("first")]).await;
    outbox.notifier().unwrap().wake();
    target.until(|t| t.names() == ["first"]).await;

    for round in 0..20 {
        add(&db, vec![record(&round.to_string())]).await;
        relay.wake();
        target.until(|t| t.names().len() == round + 2).await;
    }
    relay.close().await;
}

async fn closing_finishes_the_batch_in_flight<D: Db>(db: D) {
    add(&db, (0..10).map(|n| record(&n.to_string())).collect()).await;
    let target = Target::closed_gate();
    let relay = Arc::new(OutboxRelay::new(&target, db.outbox()).batch_size(10).start());
    target.until(|t| (0..10).all(|n| t.tries(&n.to_string()) == 1)).await;
    assert!(relay.is_running());
    add(&db, vec![record("too late")]).await;

    let closing = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.close().await }
    });
    // The close has begun once it has been polled; the batch is still at the gate.
    tokio::task::yield_now().await;
    assert!(!closing.is_finished());
    target.open_gate();
    closing.await.unwrap();

    assert!(!relay.is_running());
    assert!(relay.published() >= 10);
    let left = db.outbox().pending_count().await.unwrap();
    assert_eq!(left + relay.published(), 11, "whatever was taken was marked");
    assert_eq!(db.number("SELECT count(*) FROM {outbox} WHERE lease_until IS NOT NULL").await, 0);
    relay.close().await;
}

async fn dropping_the_handle_stops_the_relay<D: Db>(db: D) {
    let (target, outbox) = (Target::new(), db.outbox());
    let relay = OutboxRelay::new(&target, outbox.clone()).poll_interval(Duration::from_millis(5));
    let relay = relay.start();
    add(&db, vec![record("first")]).await;
    target.until(|t| t.names() == ["first"]).await;
    drop(relay);
    // Once the store is only ours again, the relay's tasks have ended.
    add(&db, vec![record("second")]).await;
    until(
        || async {
            let batch = outbox.claim_batch(1, LEASE).await.unwrap();
            batch.records().len() + target.names().len()
        },
        |n| *n == 2,
    )
    .await;
}

async fn a_dropped_drain_is_finished_in_the_background<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let target = Target::closed_gate();
    let relay = OutboxRelay::new(&target, db.outbox());
    tokio::select! {
        _ = relay.drain_once() => panic!("it cannot pass the gate"),
        () = target.until(|t| t.tries("b") == 1 && t.tries("a") == 1) => {}
    }
    target.open_gate();
    until(|| async { db.outbox().pending_count().await.unwrap() }, |n| *n == 0).await;
    assert_eq!(target.names().len(), 2);
}

async fn a_lease_is_renewed_while_a_batch_is_slow<D: Db>(db: D) {
    add(&db, (0..4).map(|n| record(&n.to_string())).collect()).await;
    let target = Target::slow(Duration::from_secs(2));
    let relay = || {
        OutboxRelay::new(&target, db.outbox())
            .lease(Duration::from_millis(900))
            .poll_interval(Duration::from_millis(20))
            .start()
    };
    let relays = [relay(), relay()];
    until(|| async { relays.iter().map(RunningRelay::published).sum::<u64>() }, |n| *n == 4).await;
    assert_eq!(target.names().len(), 4, "nobody took them over meanwhile");
    assert!(relays.iter().all(|r| r.lost() == 0));
    for relay in relays {
        relay.close().await;
    }
}

async fn quick_records_of_a_slow_batch_are_marked_without_waiting_for_it<D: Db>(db: D) {
    add(&db, vec![record("quick 1"), record("stuck"), record("quick 2")]).await;
    let target = Target::new();
    let stuck = StuckOn(target.clone(), "stuck");
    let relay = OutboxRelay::new(&stuck, db.outbox()).start();
    until(|| async { db.outbox().pending_count().await.unwrap() }, |n| *n == 1).await;
    add(&db, vec![record("later")]).await;
    until(|| async { db.outbox().pending_count().await.unwrap() }, |n| *n == 1).await;
    assert_eq!(target.names().len(), 3);
    drop(relay);
}

/// Never answers for one record.
#[derive(Clone)]
struct StuckOn(Target, &'static str);

impl acemq::outbox::OutboxTarget for StuckOn {
    async fn publish(&self, record: &acemq::outbox::OutboxRecord) -> acemq::Result<()> {
        if name(record) == self.1 {
            std::future::pending::<()>().await;
        }
        self.0.publish(record).await
    }
}

async fn no_more_than_so_many_publishes_are_in_flight<D: Db>(db: D) {
    add(&db, (0..40).map(|n| record(&n.to_string())).collect()).await;
    let target = Target::closed_gate();
    let relay = OutboxRelay::new(&target, db.outbox()).batch_size(10).concurrency(3).start();
    let started = |t: &Target| (0..40).filter(|n| t.tries(&n.to_string()) > 0).count();
    target.until(|t| started(t) == 3).await;
    let leased = "SELECT count(*) FROM {outbox} WHERE lease_until IS NOT NULL";
    assert!(db.number(leased).await <= 20, "a relay takes only what it can soon publish");
    assert_eq!(started(&target), 3);
    target.open_gate();
    until(|| async { relay.published() }, |n| *n == 40).await;
    relay.close().await;
}

async fn two_relays_keep_the_order_of_each_key<D: Db>(db: D) {
    const KEYS: usize = 10;
    const EACH: usize = 15;
    let records = (0..EACH).flat_map(|n| {
        (0..KEYS).map(move |key| record(&format!("{key}:{n}")).ordering_key(format!("key {key}")))
    });
    let mut tx = db.begin().await;
    db.add_all(&mut tx, records.collect()).await.unwrap();
    D::commit(tx).await;
    // Every third first try fails; one key fails twice as often.
    let target = Target::answering(|name, tries| {
        let n: usize = name.split(':').next_back().unwrap().parse().unwrap();
        let fails = if name.starts_with("0:") { 2 } else { u32::from(n.is_multiple_of(3)) };
        if tries <= fails { Err(nacked()) } else { Ok(()) }
    });
    let relay = || {
        OutboxRelay::new(&target, db.outbox())
            .batch_size(7)
            .retry_delay(quick())
            .poll_interval(Duration::from_millis(10))
            .start()
    };
    let relays = [relay(), relay()];
    until(
        || async { relays.iter().map(RunningRelay::published).sum::<u64>() },
        |n| *n == (KEYS * EACH) as u64,
    )
    .await;
    let mut next: HashMap<String, usize> = HashMap::new();
    for name in target.names() {
        let (key, n) = name.split_once(':').unwrap();
        let expected = next.entry(key.to_owned()).or_default();
        assert_eq!(n.parse::<usize>().unwrap(), *expected, "key {key}: {:?}", target.names());
        *expected += 1;
    }
    assert_eq!(target.overlaps(), 0);
    for relay in relays {
        relay.close().await;
    }
}

async fn a_relay_survives_a_lost_database_and_marks_what_it_had_published<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let (target, store) = (Target::closed_gate(), Flaky::new(db.outbox()));
    let relay = OutboxRelay::new(&target, store.clone()).start();
    target.until(|t| t.tries("a") == 1 && t.tries("b") == 1).await;
    store.away.store(true, Ordering::SeqCst);
    target.open_gate();
    until(|| async { relay.last_error() }, |e| e.as_ref().is_some_and(|e| e.contains("away")))
        .await;
    let calls = store.calls.load(Ordering::SeqCst);
    until(|| async { store.calls.load(Ordering::SeqCst) }, |n| *n > calls + 2).await;
    assert!(relay.is_running());

    store.away.store(false, Ordering::SeqCst);
    until(|| async { relay.published() }, |n| *n == 2).await;
    add(&db, vec![record("c")]).await;
    until(|| async { relay.published() }, |n| *n == 3).await;
    assert_eq!(target.names().len(), 3, "nothing was sent twice");
    relay.close().await;
}

async fn a_relay_waits_for_its_table<D: Db>(db: D) {
    db.execute("DROP TABLE {outbox}").await;
    db.execute("DROP TABLE {schema}").await;
    let target = Target::new();
    let relay = OutboxRelay::new(&target, db.outbox()).poll_interval(Duration::from_millis(20));
    let relay = relay.start();
    until(|| async { relay.last_error() }, |e| e.as_ref().is_some_and(|e| e.contains("migrate")))
        .await;
    db.migrate().await.unwrap();
    add(&db, vec![record("a")]).await;
    target.until(|t| t.names() == ["a"]).await;
    relay.close().await;
}

async fn a_running_relay_deletes_published_records_after_the_retention<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let target = Target::new();
    let relay = OutboxRelay::new(&target, db.outbox())
        .retention(Duration::from_millis(1))
        .purge_interval(Duration::from_millis(10))
        .start();
    until(|| async { relay.published() }, |n| *n == 2).await;
    until(|| async { db.number("SELECT count(*) FROM {outbox}").await }, |n| *n == 0).await;
    relay.close().await;
}
