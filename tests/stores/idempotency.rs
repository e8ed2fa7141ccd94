//! What every idempotency store does, whatever keeps it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use acemq::{
    Error,
    idempotency::{Claim, IdempotencyStore, MemoryIdempotencyStore},
};
use uuid::Uuid;

use crate::db::{Db, on_every_database};

/// A store together with the clock that it goes by.
pub trait Clocked: Clone + Send + Sync + 'static {
    type Store: IdempotencyStore + Clone;
    fn store(&self) -> Self::Store;
    /// Lets time pass for the rows that are there.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

impl<D: Db> Clocked for D {
    type Store = D::Idempotency;

    fn store(&self) -> Self::Store {
        self.idempotency()
    }

    async fn pass(&self, time: Duration) {
        let earlier = D::earlier("expires_at", time);
        self.execute(&format!("UPDATE {{idempotency}} SET expires_at = {earlier}")).await;
    }
}

#[derive(Clone, Default)]
pub struct Memory(MemoryIdempotencyStore);

impl Clocked for Memory {
    type Store = MemoryIdempotencyStore;

    fn store(&self) -> Self::Store {
        self.0.clone()
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        on_every_database!($($case),*);
        mod memory {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(super::Memory::default()).await;
            })*
        }
    };
}

on_every_store!(
    a_claimed_message_is_in_progress_until_it_is_confirmed_and_then_known,
    consumers_and_messages_do_not_disturb_each_other,
    a_released_claim_can_be_taken_at_once,
    nobody_but_the_owner_confirms_releases_or_renews,
    an_expired_claim_is_taken_over_and_its_late_owner_changes_nothing,
    a_renewed_claim_holds_one_more_lease,
    a_confirmed_message_is_remembered_for_the_retention,
    a_late_confirm_counts_if_nobody_took_over,
    concurrent_claims_have_one_winner,
    a_purge_is_bounded_and_never_removes_a_claim_that_matters,
    a_forgotten_message_can_be_handled_again_but_a_live_claim_stays,
    an_id_that_no_table_could_hold_is_refused,
);

async fn claimed<S: IdempotencyStore>(store: &S, id: &str) -> Uuid {
    match store.try_claim("c", id).await.unwrap() {
        Claim::Claimed(token) => token,
        other => panic!("{id}: {other:?}"),
    }
}

async fn ask<S: IdempotencyStore>(store: &S, id: &str) -> Claim {
    store.try_claim("c", id).await.unwrap()
}

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

async fn a_claimed_message_is_in_progress_until_it_is_confirmed_and_then_known<C: Clocked>(on: C) {
    let store: Arc<dyn IdempotencyStore> = Arc::new(on.store());
    let Claim::Claimed(token) = store.try_claim("c", "m").await.unwrap() else { panic!() };
    assert_eq!(store.try_claim("c", "m").await.unwrap(), Claim::InProgress);
    assert!(store.confirm("c", "m", token).await.unwrap());
    assert_eq!(store.try_claim("c", "m").await.unwrap(), Claim::AlreadyConfirmed);
    assert!(!store.confirm("c", "m", token).await.unwrap(), "once is enough");
    assert!(!store.release("c", "m", token).await.unwrap(), "confirmed is confirmed");
    assert!(!store.renew("c", "m", token).await.unwrap());
    assert_eq!(store.try_claim("c", "m").await.unwrap(), Claim::AlreadyConfirmed);
}

async fn consumers_and_messages_do_not_disturb_each_other<C: Clocked>(on: C) {
    let store = on.store();
    for (consumer, id) in [("a", "m"), ("b", "m"), ("a", "M"), ("A", "m"), ("a", "m "), ("", "")] {
        let claim = store.try_claim(consumer, id).await.unwrap();
        assert!(matches!(claim, Claim::Claimed(_)), "{consumer:?} {id:?}: {claim:?}");
    }
}

async fn a_released_claim_can_be_taken_at_once<C: Clocked>(on: C) {
    let store = on.store();
    let token = claimed(&store, "m").await;
    assert!(store.release("c", "m", token).await.unwrap());
    assert!(!store.release("c", "m", token).await.unwrap());
    assert_ne!(claimed(&store, "m").await, token);
}

async fn nobody_but_the_owner_confirms_releases_or_renews<C: Clocked>(on: C) {
    let store = on.store();
    let token = claimed(&store, "m").await;
    let other = Uuid::new_v4();
    assert!(!store.confirm("c", "m", other).await.unwrap());
    assert!(!store.release("c", "m", other).await.unwrap());
    assert!(!store.renew("c", "m", other).await.unwrap());
    assert!(!store.confirm("c", "unknown", token).await.unwrap());
    assert_eq!(ask(&store, "m").await, Claim::InProgress);
    assert!(store.confirm("c", "m", token).await.unwrap());
}

async fn an_expired_claim_is_taken_over_and_its_late_owner_changes_nothing<C: Clocked>(on: C) {
    let store = on.store();
    let late = claimed(&store, "m").await;
    on.pass(4 * MINUTE).await;
    assert_eq!(ask(&store, "m").await, Claim::InProgress, "the lease is five minutes");
    on.pass(MINUTE).await;
    let owner = claimed(&store, "m").await;
    assert!(!store.confirm("c", "m", late).await.unwrap());
    assert!(!store.release("c", "m", late).await.unwrap());
    assert!(!store.renew("c", "m", late).await.unwrap());
    assert_eq!(ask(&store, "m").await, Claim::InProgress);
    assert!(store.confirm("c", "m", owner).await.unwrap());
}

async fn a_renewed_claim_holds_one_more_lease<C: Clocked>(on: C) {
    let store = on.store();
    let token = claimed(&store, "m").await;
    for _ in 0..3 {
        on.pass(4 * MINUTE).await;
        assert!(store.renew("c", "m", token).await.unwrap());
    }
    on.pass(4 * MINUTE).await;
    assert_eq!(ask(&store, "m").await, Claim::InProgress);
    on.pass(MINUTE).await;
    claimed(&store, "m").await;
}

async fn a_confirmed_message_is_remembered_for_the_retention<C: Clocked>(on: C) {
    let store = on.store();
    let token = claimed(&store, "m").await;
    on.pass(4 * MINUTE).await;
    store.confirm("c", "m", token).await.unwrap();
    on.pass(23 * HOUR).await;
    on.pass(59 * MINUTE).await;
    assert_eq!(ask(&store, "m").await, Claim::AlreadyConfirmed, "the retention is a day");
    on.pass(MINUTE).await;
    claimed(&store, "m").await;
}

async fn a_late_confirm_counts_if_nobody_took_over<C: Clocked>(on: C) {
    let store = on.store();
    let token = claimed(&store, "m").await;
    on.pass(HOUR).await;
    store.purge(100).await.unwrap();
    assert!(store.confirm("c", "m", token).await.unwrap());
    assert_eq!(ask(&store, "m").await, Claim::AlreadyConfirmed);
}

async fn concurrent_claims_have_one_winner<C: Clocked>(on: C) {
    for round in 0..25 {
        let id = format!("m{}", round % 5);
        let claims = (0..8).map(|_| {
            let (store, id) = (on.store(), id.clone());
            tokio::spawn(async move { ask(&store, &id).await })
        });
        let claims = futures::future::join_all(claims).await;
        let won: Vec<_> = claims
            .into_iter()
            .map(Result::unwrap)
            .filter(|claim| *claim != Claim::InProgress)
            .collect();
        assert!(matches!(won[..], [Claim::Claimed(_)]), "round {round}: {won:?}");
        if round % 5 == 4 {
            // From now on the rounds compete for an expired claim.
            on.pass(5 * MINUTE).await;
        }
    }
}

async fn a_purge_is_bounded_and_never_removes_a_claim_that_matters<C: Clocked>(on: C) {
    let store = on.store();
    for n in 0..5 {
        let id = format!("confirmed {n}");
        let token = claimed(&store, &id).await;
        store.confirm("c", &id, token).await.unwrap();
    }
    let abandoned = claimed(&store, "abandoned").await;
    assert_eq!(store.purge(100).await.unwrap(), 0);

    on.pass(24 * HOUR).await;
    let live = claimed(&store, "live").await;
    assert_eq!(store.purge(3).await.unwrap(), 3);
    assert_eq!(store.purge(3).await.unwrap(), 2);
    assert_eq!(store.purge(3).await.unwrap(), 0);
    assert!(store.renew("c", "abandoned", abandoned).await.unwrap(), "nobody took it over");
    assert!(store.confirm("c", "live", live).await.unwrap());

    on.pass(25 * HOUR).await;
    assert_eq!(store.purge(100).await.unwrap(), 2, "in the end even an abandoned claim goes");
}

async fn a_forgotten_message_can_be_handled_again_but_a_live_claim_stays<C: Clocked>(on: C) {
    let store = on.store();
    assert!(!store.forget("c", "m").await.unwrap());
    let token = claimed(&store, "m").await;
    assert!(!store.forget("c", "m").await.unwrap());
    store.confirm("c", "m", token).await.unwrap();
    assert!(store.forget("c", "m").await.unwrap());
    claimed(&store, "m").await;
}

async fn an_id_that_no_table_could_hold_is_refused<C: Clocked>(on: C) {
    let store = on.store();
    let (fits, long) = ("é".repeat(127) + "x", "é".repeat(128));
    claimed(&store, &fits).await;
    for (consumer, id) in [("c", long.as_str()), (long.as_str(), "m"), ("c", "a\0b")] {
        let token = Uuid::new_v4();
        let answers = [
            store.try_claim(consumer, id).await.map(|_| ()),
            store.confirm(consumer, id, token).await.map(|_| ()),
            store.release(consumer, id, token).await.map(|_| ()),
            store.forget(consumer, id).await.map(|_| ()),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(Error::InvalidOption { .. })), "{answer:?}");
        }
    }
}

/// What only a database can do.
mod in_a_transaction {
    use super::*;

    on_every_database!(
        a_claim_in_a_transaction_counts_once_it_commits_and_never_after_a_rollback,
        of_two_transactions_with_one_message_the_second_waits_for_the_first,
        a_claim_outside_is_in_progress_inside,
        a_missing_column_is_named,
        eight_migrations_at_once_do_no_harm,
    );

    async fn a_claim_in_a_transaction_counts_once_it_commits_and_never_after_a_rollback<D: Db>(
        db: D,
    ) {
        let mut tx = db.begin().await;
        assert!(matches!(db.claim_in(&mut tx, "c", "m").await.unwrap(), Claim::Claimed(_)));
        let again = db.claim_in(&mut tx, "c", "m").await.unwrap();
        assert_eq!(again, Claim::AlreadyConfirmed, "in the same transaction");
        D::rollback(tx).await;

        let mut tx = db.begin().await;
        assert!(matches!(db.claim_in(&mut tx, "c", "m").await.unwrap(), Claim::Claimed(_)));
        D::commit(tx).await;
        assert_eq!(ask(&db.store(), "m").await, Claim::AlreadyConfirmed);
        let mut tx = db.begin().await;
        let again = db.claim_in(&mut tx, "c", "m").await.unwrap();
        assert_eq!(again, Claim::AlreadyConfirmed);
        D::commit(tx).await;

        db.pass(25 * HOUR).await;
        let mut tx = db.begin().await;
        assert!(matches!(db.claim_in(&mut tx, "c", "m").await.unwrap(), Claim::Claimed(_)));
        D::commit(tx).await;
    }

    async fn of_two_transactions_with_one_message_the_second_waits_for_the_first<D: Db>(db: D) {
        for commits in [false, true] {
            let mut first = db.begin().await;
            assert!(matches!(db.claim_in(&mut first, "c", "m").await.unwrap(), Claim::Claimed(_)));
            let mut second = tokio::spawn({
                let db = db.clone();
                async move {
                    let mut tx = db.begin().await;
                    let claim = db.claim_in(&mut tx, "c", "m").await.unwrap();
                    D::rollback(tx).await;
                    claim
                }
            });
            let early = tokio::time::timeout(Duration::from_millis(100), &mut second).await;
            assert!(early.is_err(), "the second did not wait: {early:?}");
            if commits {
                D::commit(first).await;
                assert_eq!(second.await.unwrap(), Claim::AlreadyConfirmed);
            } else {
                D::rollback(first).await;
                assert!(matches!(second.await.unwrap(), Claim::Claimed(_)));
            }
        }
    }

    async fn a_claim_outside_is_in_progress_inside<D: Db>(db: D) {
        claimed(&db.store(), "m").await;
        let mut tx = db.begin().await;
        assert_eq!(db.claim_in(&mut tx, "c", "m").await.unwrap(), Claim::InProgress);
        D::commit(tx).await;
    }

    async fn a_missing_column_is_named<D: Db>(db: D) {
        db.check_idempotency().await.unwrap();
        db.execute("ALTER TABLE {idempotency} DROP COLUMN recorded_at").await;
        let error = db.check_idempotency().await.unwrap_err();
        let Error::Schema { table, problem } = error else { panic!("{error:?}") };
        assert!(table.ends_with("idempotency"), "{table}");
        assert!(problem.contains("`recorded_at` is missing"), "{problem}");
    }

    async fn eight_migrations_at_once_do_no_harm<D: Db>(db: D) {
        db.execute("DROP TABLE {idempotency}").await;
        db.execute("DROP TABLE {schema}").await;
        let tasks = (0..8).map(|_| {
            let db = db.clone();
            tokio::spawn(async move { db.migrate_idempotency().await })
        });
        for task in futures::future::join_all(tasks).await {
            task.unwrap().unwrap();
        }
        db.check_idempotency().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_memory_forgets_what_ends_first_and_never_a_running_claim() {
    let store = MemoryIdempotencyStore::new().capacity(3);
    let running = claimed(&store, "running").await;
    for id in ["old", "new"] {
        let token = claimed(&store, id).await;
        store.confirm("c", id, token).await.unwrap();
        tokio::time::advance(MINUTE).await;
    }
    claimed(&store, "next").await;
    assert_eq!(ask(&store, "new").await, Claim::AlreadyConfirmed);
    assert_eq!(ask(&store, "running").await, Claim::InProgress);
    claimed(&store, "old").await;
    let full = store.try_claim("c", "one too many").await;
    assert!(matches!(full, Err(Error::Store { .. })), "{full:?}");
    assert!(store.confirm("c", "running", running).await.unwrap());
    claimed(&store, "one too many").await;
}

#[tokio::test]
async fn clones_of_a_memory_store_share_what_they_remember() {
    let store = MemoryIdempotencyStore::new();
    let ids: HashSet<_> = (0..3).map(|n| n.to_string()).collect();
    for id in &ids {
        claimed(&store, id).await;
        assert_eq!(ask(&store.clone(), id).await, Claim::InProgress);
    }
}
