//! The books: what was ordered, and what became of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    processes::Processes,
    saga::{COMPLETE, UNDONE},
    system::{System, again, ends_early, is_refused, is_undone},
};

struct Ordered {
    account: String,
    number: i64,
    message_ids: Vec<String>,
}

struct Effect {
    order: i64,
    message: String,
    detail: String,
}

/// What was read from the database.
pub struct Books {
    orders: BTreeMap<i64, Ordered>,
    /// By pattern, in the order in which they were written.
    effects: HashMap<String, Vec<Effect>>,
    calls: Vec<(i32, String)>,
    steps: HashMap<i64, BTreeSet<String>>,
    pending: u64,
}

/// A row of the result.
struct Row {
    sent: usize,
    /// Different orders that had their effect.
    effects: usize,
    duplicates: usize,
    inversions: usize,
    lost: Vec<i64>,
}

/// Whether a repetition is a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    Once,
    AtLeastOnce,
}

const PATTERNS: [(&str, &str, Promise); 6] = [
    ("bill", "outbox, then one transaction", Promise::Once),
    ("mail", "outbox, then a claim", Promise::AtLeastOnce),
    ("pipeline", "pipeline, its end in one transaction", Promise::AtLeastOnce),
    ("ledger", "outbox, then ordered by account", Promise::AtLeastOnce),
    ("saga", "saga, driven by its message", Promise::AtLeastOnce),
    ("reminder", "schedule, then one transaction", Promise::Once),
];

impl Books {
    async fn read(system: &System) -> Result<Self, acemq::BoxError> {
        let db = &system.site.db;
        let orders: Vec<(i64, String, i64, Vec<String>)> =
            sqlx::query_as("SELECT id, account, number, message_ids FROM orders")
                .fetch_all(db)
                .await?;
        let rows: Vec<(String, i64, String, String)> = sqlx::query_as(
            "SELECT pattern, order_id, message_id, detail FROM effects ORDER BY seq",
        )
        .fetch_all(db)
        .await?;
        let steps: Vec<(i64, String)> =
            sqlx::query_as("SELECT order_id, step FROM saga_steps WHERE done")
                .fetch_all(db)
                .await?;
        let calls = sqlx::query_as("SELECT caller, state FROM calls").fetch_all(db).await?;
        let mut books = Self {
            orders: BTreeMap::new(),
            effects: HashMap::new(),
            calls,
            steps: HashMap::new(),
            pending: system.pending().await?,
        };
        for (id, account, number, message_ids) in orders {
            books.orders.insert(id, Ordered { account, number, message_ids });
        }
        for (pattern, order, message, detail) in rows {
            books.effects.entry(pattern).or_default().push(Effect { order, message, detail });
        }
        for (order, step) in steps {
            books.steps.entry(order).or_default().insert(step);
        }
        Ok(books)
    }

    /// Waits until nothing is missing, or until the time is over: then the check tells what is.
    pub async fn balanced(system: &System, patience: Duration) -> Self {
        let deadline = Instant::now() + patience;
        loop {
            let books = again("the books", async || Self::read(system).await).await;
            let missing: usize =
                PATTERNS.iter().map(|(pattern, ..)| books.row(pattern).lost.len()).sum();
            if missing == 0 && books.pending == 0 || Instant::now() > deadline {
                return books;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    pub async fn read_again(self, system: &System) -> Self {
        again("the books", async || Self::read(system).await).await
    }

    fn effects(&self, pattern: &str) -> &[Effect] {
        self.effects.get(pattern).map_or(&[], Vec::as_slice)
    }

    pub fn orders(&self) -> impl Iterator<Item = i64> {
        self.orders.keys().copied()
    }

    fn row(&self, pattern: &str) -> Row {
        let expected: BTreeSet<i64> =
            self.orders().filter(|order| pattern != "mail" || !is_refused(*order)).collect();
        let effects = self.effects(pattern);
        let different: BTreeSet<i64> = effects.iter().map(|effect| effect.order).collect();
        Row {
            sent: expected.len(),
            effects: different.len(),
            duplicates: effects.len() - different.len(),
            inversions: if pattern == "ledger" { self.inversions() } else { 0 },
            lost: expected.difference(&different).copied().collect(),
        }
    }

    /// First effects that came after a later one of their account.
    fn inversions(&self) -> usize {
        let (mut seen, mut last) = (BTreeSet::new(), HashMap::<&str, i64>::new());
        let mut inversions = 0;
        for effect in self.effects("ledger") {
            let Some(order) = self.orders.get(&effect.order) else { continue };
            if !seen.insert(effect.order) {
                continue;
            }
            let last = last.entry(&order.account).or_default();
            inversions += usize::from(order.number < *last);
            *last = order.number.max(*last);
        }
        inversions
    }

    fn lateness(&self) -> impl Iterator<Item = i64> {
        self.effects("reminder").iter().map(|effect| effect.detail.parse().unwrap())
    }

    /// The table that stands in docs/guarantees.md.
    pub fn table(&self) -> String {
        let mut table = String::from(
            "| Pattern | Sent | Effects | Duplicates | Inversions | Lost |\n|---|---|---|---|---|---|\n",
        );
        for (pattern, title, _) in PATTERNS {
            let Row { sent, effects, duplicates, inversions, lost } = self.row(pattern);
            let inversions =
                if pattern == "ledger" { inversions.to_string() } else { "–".into() };
            let lost = lost.len();
            let _ = writeln!(
                table,
                "| {title} | {sent} | {effects} | {duplicates} | {inversions} | {lost} |"
            );
        }
        let count = |wanted| self.calls.iter().filter(|(_, state)| state == wanted).count();
        let _ = writeln!(
            table,
            "| request and reply | {} | {} answered, {} failed, {} with their caller | {} wrong | – | {} hung |",
            self.calls.len(),
            count("answered"),
            count("failed"),
            count("asked"),
            count("wrong"),
            count("hung"),
        );
        let late = self.lateness();
        let (first, last) = late.fold((i64::MAX, i64::MIN), |(a, b), c| (a.min(c), b.max(c)));
        let _ = writeln!(table, "\nReminders came from {first} ms to {last} ms after their time.");
        table
    }

    pub fn check_complete(&self) {
        assert_eq!(self.pending, 0, "records wait in the outbox");
        for (pattern, title, _) in PATTERNS {
            assert_eq!(self.row(pattern).lost, Vec::<i64>::new(), "{title}: lost");
        }
    }

    pub fn check(&self, processes: &Processes) {
        assert!(self.orders.len() > 50, "only {} orders", self.orders.len());
        self.check_complete();
        for (pattern, title, promise) in PATTERNS {
            let row = self.row(pattern);
            assert_eq!(row.inversions, 0, "{title}: inversions");
            assert_eq!(row.effects, row.sent, "{title}: more effects than orders");
            if promise == Promise::Once {
                assert_eq!(row.duplicates, 0, "{title}: duplicates");
            }
        }
        self.check_messages();
        self.check_runs();
        self.check_sagas();
        self.check_calls(processes);
        let early: Vec<i64> = self.lateness().filter(|late| *late < 0).collect();
        assert_eq!(early, Vec::<i64>::new(), "reminders that came early");
    }

    /// Every effect is of an order that was committed, and of the message that committed with it.
    fn check_messages(&self) {
        for (pattern, effects) in &self.effects {
            let mut messages = HashMap::new();
            for Effect { order, message, .. } in effects {
                let ordered = self.orders.get(order);
                let ordered = ordered.unwrap_or_else(|| panic!("{pattern}: no order {order}"));
                if ["bill", "mail", "ledger", "saga"].contains(&&**pattern) {
                    assert!(ordered.message_ids.contains(message), "{pattern} {order}: {message}");
                }
                let first = messages.entry(order).or_insert(message);
                assert_eq!(*first, message, "{pattern} {order} came under two ids");
            }
        }
    }

    /// Each run of the pipeline ended in one way, and the end in a transaction only once.
    fn check_runs(&self) {
        let mut packed = BTreeSet::new();
        for Effect { order, detail, .. } in self.effects("pipeline") {
            assert_eq!(detail == "early", ends_early(*order), "order {order} was {detail}");
            assert!(detail == "early" || packed.insert(order), "order {order} was packed twice");
        }
    }

    fn check_sagas(&self) {
        for Effect { order, detail, .. } in self.effects("saga") {
            let how = if is_undone(*order) { UNDONE } else { COMPLETE };
            assert_eq!(detail, how, "the saga of order {order}");
        }
        for order in self.orders() {
            let done = self.steps.get(&order).map_or(0, BTreeSet::len);
            let expected = if is_undone(order) { 0 } else { 3 };
            assert_eq!(done, expected, "steps of order {order} that stay done");
        }
    }

    fn check_calls(&self, processes: &Processes) {
        assert!(!self.calls.is_empty());
        for (caller, state) in &self.calls {
            let known = matches!(&**state, "answered" | "failed");
            let died = state == "asked" && processes.killed_callers.contains(caller);
            assert!(known || died, "a call of process {caller} is {state}");
        }
    }
}
