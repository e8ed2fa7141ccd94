//! What every outbox store does, whatever its database.

use std::{collections::HashSet, time::Duration};

use acemq::{
    Envelope, Error, HeaderValue, Headers,
    outbox::{ClaimedBatch, FailedPublish, OutboxRecord, OutboxStore, Retired},
};
use bytes::Bytes;
use uuid::Uuid;

use crate::db::{Db, on_every_database};

pub const LEASE: Duration = Duration::from_mins(1);

pub fn record(name: &str) -> OutboxRecord {
    OutboxRecord::bytes("orders", "order.placed", "text/plain", Bytes::from(name.to_owned()))
}

/// Adds records in one transaction and commits it.
pub async fn add<D: Db>(db: &D, records: Vec<OutboxRecord>) {
    let mut tx = db.begin().await;
    for record in records {
        assert!(db.outbox().add(&mut tx, record).await.unwrap());
    }
    D::commit(tx).await;
}

/// The payloads of a batch as text, in its order.
fn names(batch: &ClaimedBatch) -> Vec<String> {
    let payload = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    batch.records().iter().map(|r| payload(r.record().payload())).collect()
}

fn seqs(batch: &ClaimedBatch) -> Vec<i64> {
    batch.records().iter().map(acemq::outbox::ClaimedRecord::seq).collect()
}

async fn claim<D: Db>(db: &D) -> ClaimedBatch {
    db.outbox().claim_batch(100, LEASE).await.unwrap()
}

on_every_database!(
    a_rollback_stores_nothing,
    a_commit_stores_each_record_once_in_order,
    a_dropped_transaction_stores_nothing,
    many_records_are_added_at_once_in_their_order,
    a_record_that_can_never_be_published_is_refused_and_the_transaction_lives_on,
    a_unique_key_is_stored_once_while_its_record_exists,
    bytes_and_headers_come_back_exactly,
    a_claim_takes_only_so_many_and_skips_what_is_leased,
    an_expired_lease_is_taken_over_by_exactly_one_of_eight_claimers,
    a_late_owner_changes_nothing,
    a_renewed_lease_is_not_taken_over,
    a_released_record_is_free_again_with_no_attempt_spent,
    a_failed_record_waits_and_counts_its_attempts,
    a_retired_record_is_listed_and_can_be_requeued,
    a_delayed_record_is_not_claimed_before_its_time,
    a_delayed_record_is_listed_and_can_be_cancelled_until_its_time,
    a_record_that_is_cancelled_as_it_falls_due_is_cancelled_or_claimed,
    one_claim_at_a_time_has_records_of_a_key_and_in_order,
    a_run_of_a_key_ends_before_the_first_record_that_may_not_go_out,
    a_retired_record_blocks_its_key_unless_told_otherwise,
    a_long_backlog_of_one_key_does_not_hide_the_others,
    keys_take_turns_when_more_wait_than_fit_a_batch,
    a_record_that_commits_late_is_not_skipped,
    a_damaged_row_fails_alone,
    published_records_are_purged_in_bounded_batches_and_no_others,
    published_records_are_deleted_at_once_if_so_told,
    counts_and_ages_tell_what_waits,
    a_missing_column_is_named,
    a_missing_table_is_named,
    eight_migrations_at_once_do_no_harm,
    the_printed_migration_leaves_the_same_tables,
    eight_claimers_share_a_thousand_records_without_overlap,
    writers_and_claimers_meet_without_errors,
);

async fn a_rollback_stores_nothing<D: Db>(db: D) {
    let mut tx = db.begin().await;
    db.outbox().add(&mut tx, record("a")).await.unwrap();
    D::rollback(tx).await;
    assert_eq!(db.outbox().pending_count().await.unwrap(), 0);
    assert!(claim(&db).await.is_empty());
}

async fn a_commit_stores_each_record_once_in_order<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    add(&db, vec![record("c")]).await;
    let batch = claim(&db).await;
    assert_eq!(names(&batch), ["a", "b", "c"]);
    assert_eq!(batch.records()[0].attempts(), 0);
    assert!(batch.records()[0].age() < Duration::from_mins(1));
}

async fn a_dropped_transaction_stores_nothing<D: Db>(db: D) {
    let mut tx = db.begin().await;
    db.outbox().add(&mut tx, record("a")).await.unwrap();
    drop(tx);
    assert_eq!(db.outbox().pending_count().await.unwrap(), 0);
}

async fn many_records_are_added_at_once_in_their_order<D: Db>(db: D) {
    let records: Vec<_> = (0..2500).map(|n| record(&n.to_string())).collect();
    let mut tx = db.begin().await;
    assert_eq!(db.add_all(&mut tx, records).await.unwrap(), 2500);
    assert_eq!(db.add_all(&mut tx, vec![]).await.unwrap(), 0);
    D::commit(tx).await;
    let batch = db.outbox().claim_batch(10_000, LEASE).await.unwrap();
    let expected: Vec<_> = (0..2500).map(|n| n.to_string()).collect();
    assert_eq!(names(&batch), expected);
}

async fn a_record_that_can_never_be_published_is_refused_and_the_transaction_lives_on<D: Db>(
    db: D,
) {
    let long = "k".repeat(256);
    let bad = [
        OutboxRecord::bytes(long.as_str(), "k", "t", "x"),
        OutboxRecord::bytes("e", long.as_str(), "t", "x"),
        record("x").header("x-acemq-id", "forged"),
        record("x").header(long.as_str(), "x"),
        record("x").ordering_key(long.as_str()),
    ];
    let mut tx = db.begin().await;
    for record in bad {
        let refused = db.outbox().add(&mut tx, record.clone()).await;
        assert!(matches!(refused, Err(Error::InvalidOption { .. })), "{refused:?}");
        let refused = db.add_all(&mut tx, vec![crate::outbox::record("y"), record]).await;
        assert!(matches!(refused, Err(Error::InvalidOption { .. })), "{refused:?}");
    }
    db.outbox().add(&mut tx, record("good").ordering_key("k".repeat(255))).await.unwrap();
    D::commit(tx).await;
    assert_eq!(names(&claim(&db).await), ["good"]);
}

async fn a_unique_key_is_stored_once_while_its_record_exists<D: Db>(db: D) {
    let mut tx = db.begin().await;
    let outbox = db.outbox();
    assert!(outbox.add(&mut tx, record("a").unique_key("one")).await.unwrap());
    assert!(!outbox.add(&mut tx, record("b").unique_key("one")).await.unwrap());
    assert!(outbox.add(&mut tx, record("c").unique_key("ONE")).await.unwrap(), "case matters");
    let many = vec![
        record("d").unique_key("one"),
        record("e").unique_key("two"),
        record("f").unique_key("two"),
        record("g"),
    ];
    assert_eq!(db.add_all(&mut tx, many).await.unwrap(), 2);
    D::commit(tx).await;
    let batch = claim(&db).await;
    assert_eq!(names(&batch), ["a", "c", "e", "g"]);
    assert_eq!(batch.records()[0].record().get_unique_key(), Some("one"));

    outbox.mark_published(batch.token(), &seqs(&batch)).await.unwrap();
    outbox.purge(Duration::ZERO, 100).await.unwrap();
    add(&db, vec![record("h").unique_key("one")]).await;
}

async fn bytes_and_headers_come_back_exactly<D: Db>(db: D) {
    let payloads: [Bytes; 4] = [
        Bytes::from_static(b""),
        Bytes::from_static(b"\x00\xff\xfe\x00\x80 not utf-8"),
        Bytes::from_static(br#"{"b":1.0,"a":12345678901234567890,"a":"\u0000","c":1e400}"#),
        Bytes::from((0..=255).cycle().take(300_000).collect::<Vec<u8>>()),
    ];
    let nested: Headers =
        [("deep", HeaderValue::Bytes(Bytes::from_static(b"\x00\xff")))].into_iter().collect();
    let envelope = Envelope::of("order.placed")
        .caused_by("parent")
        .correlation("action 🦀")
        .version(7)
        .header("text", "with \0 NUL and 'quotes' \\ and ünïcode")
        .header("int", 1)
        .header("long", i64::MAX)
        .header("double", 0.1 + 0.2)
        .header("infinite", f64::NEG_INFINITY)
        .header("flag", true)
        .header("decimal", HeaderValue::Decimal { scale: 2, value: 150 })
        .header("time", HeaderValue::Timestamp(u64::MAX))
        .header("list", HeaderValue::List(vec![HeaderValue::Null, 1.into(), 1_i64.into()]))
        .header("table", HeaderValue::Table(nested));
    let envelope = envelope.first_seen(chrono::DateTime::from_timestamp_millis(1).unwrap());
    for payload in payloads {
        let record = OutboxRecord::bytes("", "ключ", "application/x-raw; v=1", payload)
            .envelope(envelope.clone())
            .ordering_key(Uuid::new_v4().to_string());
        add(&db, vec![record.clone()]).await;
        let mut tx = db.begin().await;
        db.add_all(&mut tx, vec![record.clone().ordering_key("many")]).await.unwrap();
        D::commit(tx).await;

        let batch = claim(&db).await;
        assert_eq!(batch.records().len(), 2);
        assert_eq!(batch.records()[0].record(), &record);
        assert_eq!(batch.records()[1].record(), &record.ordering_key("many"));
        assert_eq!(batch.records()[0].record().id(), envelope.id());
        db.outbox().mark_published(batch.token(), &seqs(&batch)).await.unwrap();
    }
}

async fn a_claim_takes_only_so_many_and_skips_what_is_leased<D: Db>(db: D) {
    add(&db, (0..5).map(|n| record(&n.to_string())).collect()).await;
    let outbox = db.outbox();
    let first = outbox.claim_batch(2, LEASE).await.unwrap();
    let second = outbox.claim_batch(100, LEASE).await.unwrap();
    assert_eq!(names(&first), ["0", "1"]);
    assert_eq!(names(&second), ["2", "3", "4"]);
    assert_ne!(first.token(), second.token());
    assert!(claim(&db).await.is_empty());
}

async fn an_expired_lease_is_taken_over_by_exactly_one_of_eight_claimers<D: Db>(db: D) {
    add(&db, vec![record("a").ordering_key("k"), record("b")]).await;
    for _ in 0..20 {
        // The lease of the last winner ends.
        db.execute(&format!("UPDATE {{outbox}} SET lease_until = {}", D::from_now(-1))).await;
        let claims = (0..8).map(|_| {
            let outbox = db.outbox();
            tokio::spawn(async move { outbox.claim_batch(1, LEASE).await.unwrap() })
        });
        let claims = futures::future::join_all(claims).await;
        let mut won: Vec<_> = claims.iter().flat_map(|c| names(c.as_ref().unwrap())).collect();
        won.sort();
        // A claimer that skips a locked row may find nothing else; nobody gets a row twice.
        assert!(won == ["a", "b"] || won == ["a"] || won == ["b"], "{won:?}");
        if won.len() == 1 {
            assert_eq!(claim(&db).await.records().len(), 1);
        }
    }
}

async fn a_late_owner_changes_nothing<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let outbox = db.outbox();
    let late = claim(&db).await;
    db.execute(&format!("UPDATE {{outbox}} SET lease_until = {}", D::from_now(-1))).await;
    let owner = claim(&db).await;
    assert_eq!(names(&owner), ["a", "b"]);

    let (token, all) = (late.token(), seqs(&late));
    let failures: Vec<_> = all.iter().map(|seq| FailedPublish::retire(*seq, "late")).collect();
    assert_eq!(outbox.mark_published(token, &all).await.unwrap(), 0);
    assert_eq!(outbox.mark_failed(token, &failures).await.unwrap(), 0);
    assert_eq!(outbox.renew(token, &all, LEASE).await.unwrap(), 0);
    assert_eq!(outbox.release(token, &all, Duration::ZERO).await.unwrap(), 0);
    assert!(claim(&db).await.is_empty(), "the owner still holds them");

    assert_eq!(outbox.mark_published(owner.token(), &seqs(&owner)).await.unwrap(), 2);
    assert_eq!(outbox.mark_published(owner.token(), &seqs(&owner)).await.unwrap(), 0);
    assert_eq!(outbox.pending_count().await.unwrap(), 0);
}

async fn a_renewed_lease_is_not_taken_over<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let outbox = db.outbox();
    let batch = claim(&db).await;
    db.execute(&format!("UPDATE {{outbox}} SET lease_until = {}", D::from_now(-1))).await;
    assert_eq!(outbox.renew(batch.token(), &seqs(&batch)[..1], LEASE).await.unwrap(), 1);
    assert_eq!(names(&claim(&db).await), ["b"]);
}

async fn a_released_record_is_free_again_with_no_attempt_spent<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let outbox = db.outbox();
    let batch = claim(&db).await;
    let all = seqs(&batch);
    outbox.release(batch.token(), &all[..1], Duration::ZERO).await.unwrap();
    outbox.release(batch.token(), &all[1..], Duration::from_hours(1)).await.unwrap();
    let again = claim(&db).await;
    assert_eq!(names(&again), ["a"]);
    assert_eq!(again.records()[0].attempts(), 0);
    assert_eq!(db.number("SELECT count(*) FROM {outbox} WHERE attempts > 0").await, 0);
}

async fn a_failed_record_waits_and_counts_its_attempts<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let outbox = db.outbox();
    let batch = claim(&db).await;
    let all = seqs(&batch);
    let failures = [
        FailedPublish::retry(all[0], "no queue 'x' \0 \" here", Duration::ZERO),
        FailedPublish::retry(all[1], &"é".repeat(2000), Duration::from_hours(1)),
    ];
    assert_eq!(outbox.mark_failed(batch.token(), &failures).await.unwrap(), 2);
    let again = claim(&db).await;
    assert_eq!(names(&again), ["a"]);
    assert_eq!(again.records()[0].attempts(), 1);
    // Two bytes a character; the count is 1,000 characters and no more.
    let whole =
        format!("SELECT count(*) FROM {{outbox}} WHERE last_error = '{}'", "é".repeat(1000));
    assert_eq!(db.number(&whole).await, 1);
}

async fn a_retired_record_is_listed_and_can_be_requeued<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let outbox = db.outbox();
    let batch = claim(&db).await;
    let all = seqs(&batch);
    let failures =
        [FailedPublish::retire(all[0], "unroutable"), FailedPublish::retire(all[1], "too large")];
    outbox.mark_failed(batch.token(), &failures).await.unwrap();
    assert!(claim(&db).await.is_empty());
    assert_eq!(outbox.pending_count().await.unwrap(), 2, "retired records are not published");

    let retired = outbox.retired(10).await.unwrap();
    assert_eq!(outbox.retired(1).await.unwrap(), retired[..1]);
    assert_eq!((retired[0].seq, retired[0].attempts), (all[0], 1));
    assert_eq!(retired[0].id, batch.records()[0].record().id());
    assert_eq!(
        (retired[0].exchange.as_str(), retired[0].routing_key.as_str()),
        ("orders", "order.placed")
    );
    assert_eq!(retired[1].last_error, "too large");
    assert!(retired[0].retired_at >= retired[0].created_at);

    assert_eq!(outbox.requeue(&all[..1]).await.unwrap(), 1);
    assert_eq!(outbox.requeue(&all[..1]).await.unwrap(), 0);
    let again = claim(&db).await;
    assert_eq!(names(&again), ["a"]);
    assert_eq!(again.records()[0].attempts(), 0);
    assert_eq!(outbox.retired(10).await.unwrap(), retired[1..]);
}

async fn a_delayed_record_is_not_claimed_before_its_time<D: Db>(db: D) {
    let now = chrono::Utc::now();
    let hour = chrono::TimeDelta::hours(1);
    add(
        &db,
        vec![
            record("later").available_at(now + hour),
            record("past").available_at(now - hour),
            record("now"),
        ],
    )
    .await;
    assert_eq!(names(&claim(&db).await), ["past", "now"]);
    db.execute(&format!("UPDATE {{outbox}} SET available_at = {}", D::from_now(-1))).await;
    assert_eq!(names(&claim(&db).await), ["later"]);
}

async fn cancel<D: Db>(db: &D, id: &str) -> bool {
    let mut tx = db.begin().await;
    let cancelled = db.cancel(&mut tx, id).await.unwrap();
    D::commit(tx).await;
    cancelled
}

async fn a_delayed_record_is_listed_and_can_be_cancelled_until_its_time<D: Db>(db: D) {
    let now = chrono::Utc::now();
    let after = |hours| now + chrono::TimeDelta::hours(hours);
    let [late, soon, due] = [record("late"), record("soon"), record("due")];
    let ids = [late.id(), soon.id(), due.id()].map(str::to_owned);
    let keyed = soon.ordering_key("key").available_at(after(1));
    add(&db, vec![late.available_at(after(2)), keyed, due]).await;

    let listed = db.scheduled(10).await.unwrap();
    let found: Vec<&str> = listed.iter().map(|of| of.id.as_str()).collect();
    assert_eq!(found, [&ids[1], &ids[0]]);
    assert_eq!(
        (listed[0].exchange.as_str(), listed[0].ordering_key.as_deref()),
        ("orders", Some("key"))
    );
    assert!((listed[0].available_at - after(1)).abs() < chrono::TimeDelta::milliseconds(2));
    assert_eq!(db.scheduled(1).await.unwrap().len(), 1);

    let mut tx = db.begin().await;
    assert!(db.cancel(&mut tx, &ids[1]).await.unwrap());
    D::rollback(tx).await;
    assert_eq!(db.scheduled(10).await.unwrap().len(), 2, "a rollback leaves it scheduled");
    assert!(cancel(&db, &ids[1]).await && !cancel(&db, &ids[1]).await);
    assert!(!cancel(&db, &ids[2]).await, "its time has come");
    assert!(!cancel(&db, "nobody").await);
    assert_eq!(names(&claim(&db).await), ["due"]);
    assert!(!cancel(&db, &ids[2]).await, "it is in flight");
    db.execute(&format!("UPDATE {{outbox}} SET available_at = {}", D::from_now(-1))).await;
    assert_eq!(names(&claim(&db).await), ["late"]);
}

async fn a_record_that_is_cancelled_as_it_falls_due_is_cancelled_or_claimed<D: Db>(db: D) {
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let records: Vec<OutboxRecord> =
        (0..200).map(|number| record(&number.to_string()).available_at(later)).collect();
    let ids: Vec<String> = records.iter().map(|record| record.id().to_owned()).collect();
    add(&db, records).await;
    db.execute(&format!("UPDATE {{outbox}} SET available_at = {}", D::from_now(1))).await;

    let cancelling = async {
        let mut cancelled = HashSet::new();
        for id in &ids {
            // From before its time to after it, spread over all of them.
            if cancel(&db, id).await {
                cancelled.insert(id.clone());
            }
            tokio::time::sleep(Duration::from_millis(6)).await;
        }
        cancelled
    };
    let claiming = async {
        let mut claimed = HashSet::new();
        while db.outbox().pending_count().await.unwrap() > 0 {
            let batch = db.outbox().claim_batch(7, LEASE).await.unwrap();
            claimed.extend(batch.records().iter().map(|of| of.record().id().to_owned()));
            db.outbox().mark_published(batch.token(), &seqs(&batch)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        claimed
    };
    let (cancelled, claimed) = tokio::join!(cancelling, claiming);
    assert!(cancelled.is_disjoint(&claimed));
    assert_eq!(cancelled.len() + claimed.len(), ids.len());
    assert!(!cancelled.is_empty() && !claimed.is_empty(), "{} cancelled", cancelled.len());
}

async fn one_claim_at_a_time_has_records_of_a_key_and_in_order<D: Db>(db: D) {
    let keyed = |name: &str, key: &str| record(name).ordering_key(key);
    add(&db, vec![keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b"), record("free")]).await;
    add(&db, vec![keyed("a3", "a"), keyed("b2", "b"), keyed("A1", "A")]).await;
    let outbox = db.outbox();

    // Four places: the first of each key and the one without.
    let first = outbox.claim_batch(4, LEASE).await.unwrap();
    let mut claimed = names(&first);
    claimed.sort();
    assert_eq!(claimed, ["A1", "a1", "b1", "free"]);
    assert_eq!(first.records()[0].record().get_ordering_key(), Some("a"));
    assert!(claim(&db).await.is_empty(), "the first of each key is in flight");

    // a1 fails and waits: its key stands still, the other goes on.
    let all = seqs(&first);
    let failed = [FailedPublish::retry(all[0], "refused", Duration::from_hours(1))];
    outbox.mark_failed(first.token(), &failed).await.unwrap();
    outbox.mark_published(first.token(), &all[1..]).await.unwrap();
    let second = claim(&db).await;
    assert_eq!(names(&second), ["b2"]);

    db.execute(&format!("UPDATE {{outbox}} SET available_at = {}", D::from_now(-1))).await;
    let runs: &[&[&str]] =
        if D::RUNS { &[&["a1", "a2", "a3"]] } else { &[&["a1"], &["a2"], &["a3"]] };
    for expected in runs {
        let batch = claim(&db).await;
        assert_eq!(names(&batch), *expected);
        outbox.mark_published(batch.token(), &seqs(&batch)).await.unwrap();
    }
}

async fn a_run_of_a_key_ends_before_the_first_record_that_may_not_go_out<D: Db>(db: D) {
    if !D::RUNS {
        return; // Each claim has one record of a key here.
    }
    let keyed = |n: usize| record(&n.to_string()).ordering_key("k");
    let outbox = db.outbox();
    for obstacle in ["available_at = {soon}", "lease_until = {soon}", "retired_at = available_at"] {
        add(&db, (0..6).map(keyed).collect()).await;
        let third = db.number("SELECT min(seq) + 2 FROM {outbox}").await;
        let obstacle = obstacle.replace("{soon}", &D::from_now(3600));
        db.execute(&format!("UPDATE {{outbox}} SET {obstacle} WHERE seq = {third}")).await;
        let batch = outbox.claim_batch(100, LEASE).await.unwrap();
        assert_eq!(names(&batch), ["0", "1"], "{obstacle}");
        outbox.mark_published(batch.token(), &seqs(&batch)).await.unwrap();
        assert!(claim(&db).await.is_empty(), "{obstacle}");
        db.execute("DELETE FROM {outbox}").await;
    }

    // A limit cuts the tail, also where the first one was tried before and is due last.
    add(&db, (0..6).map(keyed).collect()).await;
    let first = db.number("SELECT min(seq) FROM {outbox}").await;
    let later = D::earlier("available_at", Duration::ZERO);
    db.execute(&format!(
        "UPDATE {{outbox}} SET available_at = {later}, created_at = {later} WHERE seq > {first}"
    ))
    .await;
    let batch = outbox.claim_batch(3, LEASE).await.unwrap();
    assert_eq!(names(&batch), ["0", "1", "2"]);
}

async fn a_retired_record_blocks_its_key_unless_told_otherwise<D: Db>(db: D) {
    let keyed = |name: &str| record(name).ordering_key("k");
    add(&db, vec![keyed("1"), keyed("2"), keyed("3")]).await;
    let batch = db.outbox().claim_batch(1, LEASE).await.unwrap();
    assert_eq!(names(&batch), ["1"]);
    let failed = [FailedPublish::retire(seqs(&batch)[0], "refused")];
    db.outbox().mark_failed(batch.token(), &failed).await.unwrap();
    assert!(claim(&db).await.is_empty());

    let skipping = db.outbox_with(true, Retired::SkipRecord);
    let next = skipping.claim_batch(1, LEASE).await.unwrap();
    assert_eq!(names(&next), ["2"]);
    skipping.mark_published(next.token(), &seqs(&next)).await.unwrap();

    db.outbox().requeue(&seqs(&batch)).await.unwrap();
    assert_eq!(names(&db.outbox().claim_batch(1, LEASE).await.unwrap()), ["1"]);
}

async fn a_long_backlog_of_one_key_does_not_hide_the_others<D: Db>(db: D) {
    let mut tx = db.begin().await;
    let backlog = (0..3000).map(|n| record(&n.to_string()).ordering_key("hot"));
    db.add_all(&mut tx, backlog.collect()).await.unwrap();
    D::commit(tx).await;
    add(&db, vec![record("free"), record("other").ordering_key("other")]).await;
    let outbox = db.outbox();
    let first = outbox.claim_batch(1, LEASE).await.unwrap();
    assert_eq!(names(&first), ["0"], "the oldest goes first");
    let failed = [FailedPublish::retire(seqs(&first)[0], "refused")];
    outbox.mark_failed(first.token(), &failed).await.unwrap();

    let started = std::time::Instant::now();
    assert_eq!(names(&outbox.claim_batch(10, LEASE).await.unwrap()), ["free", "other"]);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

async fn keys_take_turns_when_more_wait_than_fit_a_batch<D: Db>(db: D) {
    let keyed = |name: &str, key: u32| record(name).ordering_key(format!("key {key:02}"));
    let all = (0..3).flat_map(|n| (0..20).map(move |key| keyed(&format!("{key}:{n}"), key)));
    add(&db, all.collect()).await;
    let outbox = db.outbox();
    let mut first = HashSet::new();
    for _ in 0..4 {
        let batch = outbox.claim_batch(5, LEASE).await.unwrap();
        assert_eq!(batch.records().len(), 5);
        first.extend(names(&batch));
        outbox.mark_published(batch.token(), &seqs(&batch)).await.unwrap();
    }
    assert!((0..20).all(|key| first.contains(&format!("{key}:0"))), "{first:?}");

    // Wherever the turn stands, what is there is found.
    add(&db, vec![record("first of all").ordering_key("!")]).await;
    let mut rest = HashSet::new();
    while let batch = outbox.claim_batch(7, LEASE).await.unwrap()
        && !batch.is_empty()
    {
        rest.extend(names(&batch));
        outbox.mark_published(batch.token(), &seqs(&batch)).await.unwrap();
    }
    assert!(rest.contains("first of all"));
    assert_eq!(rest.len(), 41);
}

async fn a_record_that_commits_late_is_not_skipped<D: Db>(db: D) {
    if D::ONE_WRITER {
        return; // No two transactions can overlap here: order is always commit order.
    }
    for (early, late) in [("e", "l"), ("same", "same")] {
        let outbox = db.outbox();
        let mut open = db.begin().await;
        outbox.add(&mut open, record("late").ordering_key(late)).await.unwrap();
        add(&db, vec![record("early").ordering_key(early)]).await;
        let first = claim(&db).await;
        assert_eq!(names(&first), ["early"]);
        outbox.mark_published(first.token(), &seqs(&first)).await.unwrap();
        assert!(claim(&db).await.is_empty());

        D::commit(open).await;
        let second = claim(&db).await;
        assert_eq!(names(&second), ["late"]);
        assert!(seqs(&second) < seqs(&first), "it has the smaller number and is found by state");
        outbox.mark_published(second.token(), &seqs(&second)).await.unwrap();
    }
}

async fn a_damaged_row_fails_alone<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let id = db.number("SELECT min(seq) FROM {outbox}").await;
    db.execute(&format!("UPDATE {{outbox}} SET headers = '{{broken' WHERE seq = {id}")).await;
    let batch = claim(&db).await;
    assert!(batch.records()[0].damage().is_some());
    assert!(batch.records()[1].damage().is_none());
}

async fn published_records_are_purged_in_bounded_batches_and_no_others<D: Db>(db: D) {
    add(&db, (0..6).map(|n| record(&n.to_string())).collect()).await;
    let outbox = db.outbox();
    let batch = claim(&db).await;
    let all = seqs(&batch);
    outbox.mark_published(batch.token(), &all[..4]).await.unwrap();
    let retired = [FailedPublish::retire(all[4], "refused")];
    outbox.mark_failed(batch.token(), &retired).await.unwrap();

    let hour = Duration::from_hours(1);
    assert_eq!(outbox.purge(hour, 100).await.unwrap(), 0, "they are too young");
    let old = D::from_now(-7200);
    db.execute(&format!(
        "UPDATE {{outbox}} SET published_at = {old} WHERE published_at IS NOT NULL"
    ))
    .await;
    assert_eq!(outbox.purge(hour, 3).await.unwrap(), 3);
    assert_eq!(outbox.purge(hour, 3).await.unwrap(), 1);
    assert_eq!(outbox.purge(hour, 3).await.unwrap(), 0);
    assert_eq!(outbox.pending_count().await.unwrap(), 2);
}

async fn published_records_are_deleted_at_once_if_so_told<D: Db>(db: D) {
    add(&db, vec![record("a"), record("b")]).await;
    let outbox = db.outbox_with(false, Retired::BlockKey);
    let batch = claim(&db).await;
    assert_eq!(outbox.mark_published(Uuid::new_v4(), &seqs(&batch)).await.unwrap(), 0);
    assert_eq!(outbox.mark_published(batch.token(), &seqs(&batch)[..1]).await.unwrap(), 1);
    assert_eq!(db.number("SELECT count(*) FROM {outbox}").await, 1);
}

async fn counts_and_ages_tell_what_waits<D: Db>(db: D) {
    let outbox = db.outbox();
    assert_eq!(outbox.oldest_pending_age().await.unwrap(), None);
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    add(&db, vec![record("later").available_at(later)]).await;
    assert_eq!(outbox.pending_count().await.unwrap(), 1);
    assert_eq!(outbox.oldest_pending_age().await.unwrap(), None, "it is not late");

    add(&db, vec![record("a"), record("b")]).await;
    db.execute(&format!("UPDATE {{outbox}} SET created_at = {}", D::from_now(-100))).await;
    let age = outbox.oldest_pending_age().await.unwrap().unwrap();
    assert!((99..120).contains(&age.as_secs()), "{age:?}");
    let batch = claim(&db).await;
    assert!((99..120).contains(&batch.records()[0].age().as_secs()));
    outbox.mark_published(batch.token(), &seqs(&batch)).await.unwrap();
    assert_eq!(outbox.oldest_pending_age().await.unwrap(), None);
    assert_eq!(outbox.pending_count().await.unwrap(), 1);
}

async fn a_missing_column_is_named<D: Db>(db: D) {
    db.outbox().check().await.unwrap();
    db.execute("ALTER TABLE {outbox} DROP COLUMN last_error").await;
    let error = db.outbox().check().await.unwrap_err();
    let Error::Schema { table, problem } = error else { panic!("{error:?}") };
    assert!(table.ends_with("outbox"), "{table}");
    assert!(problem.contains("`last_error` is missing"), "{problem}");
}

async fn a_missing_table_is_named<D: Db>(db: D) {
    db.execute("DROP TABLE {outbox}").await;
    let error = db.outbox().check().await.unwrap_err();
    assert!(error.to_string().contains("outbox`: the table does not exist"), "{error}");
}

async fn eight_migrations_at_once_do_no_harm<D: Db>(db: D) {
    for round in 0..3 {
        if round > 0 {
            db.execute("DROP TABLE {outbox}").await;
            db.execute("DROP TABLE {schema}").await;
        }
        let tasks = (0..8).map(|_| {
            let db = db.clone();
            tokio::spawn(async move { db.migrate().await })
        });
        for task in futures::future::join_all(tasks).await {
            task.unwrap().unwrap();
        }
        db.outbox().check().await.unwrap();
    }
    let version =
        db.number("SELECT count(*) FROM {schema} WHERE pattern = 'outbox' AND version = 1");
    assert_eq!(version.await, 1);
}

async fn the_printed_migration_leaves_the_same_tables<D: Db>(db: D) {
    db.execute("DROP TABLE {outbox}").await;
    db.execute("DROP TABLE {schema}").await;
    let sql = db.migration_sql();
    db.execute(&sql).await;
    db.execute(&sql).await;
    db.outbox().check().await.unwrap();
    db.migrate().await.unwrap();
    add(&db, vec![record("a")]).await;
    assert_eq!(names(&claim(&db).await), ["a"]);
}

async fn eight_claimers_share_a_thousand_records_without_overlap<D: Db>(db: D) {
    let records: Vec<_> = (0..1000).map(|n| record(&n.to_string())).collect();
    let mut tx = db.begin().await;
    db.add_all(&mut tx, records).await.unwrap();
    D::commit(tx).await;
    let claimers = (0..8).map(|_| {
        let outbox = db.outbox();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let batch = outbox.claim_batch(17, LEASE).await.unwrap();
                if batch.is_empty() && outbox.pending_count().await.unwrap() == 0 {
                    return mine;
                }
                let marked = outbox.mark_published(batch.token(), &seqs(&batch)).await.unwrap();
                assert_eq!(marked, batch.records().len() as u64);
                mine.extend(names(&batch));
            }
        })
    });
    let taken = futures::future::join_all(claimers).await;
    let taken: Vec<_> = taken.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(taken.len(), 1000);
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 1000);
}

async fn writers_and_claimers_meet_without_errors<D: Db>(db: D) {
    let writers = (0..6).map(|writer| {
        let db = db.clone();
        tokio::spawn(async move {
            for n in 0..20 {
                let key = format!("key {}", n % 3);
                add(&db, vec![record(&format!("{writer}/{n}")).ordering_key(key)]).await;
            }
        })
    });
    let claimers = (0..3).map(|_| {
        let outbox = db.outbox();
        tokio::spawn(async move {
            let mut seen = 0;
            while seen < 400 {
                let batch = outbox.claim_batch(5, LEASE).await.unwrap();
                let all = seqs(&batch);
                assert_eq!(
                    outbox.mark_published(batch.token(), &all).await.unwrap(),
                    all.len() as u64
                );
                outbox.purge(Duration::ZERO, 10).await.unwrap();
                seen += u32::from(all.is_empty());
                tokio::task::yield_now().await;
            }
        })
    });
    let tasks: Vec<_> = writers.chain(claimers.collect::<Vec<_>>()).collect();
    for task in futures::future::join_all(tasks).await {
        task.unwrap();
    }
    // What the claimers left when they gave up comes out one by one, in order.
    loop {
        let batch = claim(&db).await;
        if batch.is_empty() {
            break;
        }
        db.outbox().mark_published(batch.token(), &seqs(&batch)).await.unwrap();
    }
    assert_eq!(db.outbox().pending_count().await.unwrap(), 0);
}
