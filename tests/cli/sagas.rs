//! `acemq sagas` on each database.

use std::time::Duration;

use acemq::{
    MySqlSagaJournal, PostgresSagaJournal, RetryPolicy, Saga, SqliteSagaJournal, StepError,
    saga::SagaJournal,
};

use crate::{Run, acemq};

/// Runs a saga that fails, and whose first step cannot be undone.
async fn tear(journal: impl SagaJournal) {
    let saga = Saga::<u32>::named("order")
        .durable(journal)
        .step("pay", |state: u32| async move { Ok::<_, StepError>(state) })
        .compensate_with(|_: u32| async { Err::<(), _>(StepError::not_done("the bank is closed")) })
        .retry(RetryPolicy::fixed(1, Duration::from_millis(1)))
        .step("ship", |_: u32| async { Err::<u32, _>(StepError::fatal("no ship")) })
        .build()
        .unwrap();
    for key in ["order-1", "order-2"] {
        assert!(saga.run(key, &1).await.unwrap().has_unresolved());
    }
}

fn looks_after_them(url: &str, prefix: &str) {
    let run = |arguments: &[&str]| -> Run {
        let common = ["--database", url, "--table-prefix", prefix, "sagas"];
        acemq(&[&common[..], arguments].concat())
    };
    let listed = run(&["unresolved", "order", "--json"]).ends_with(3).json();
    let keys: Vec<_> = listed.as_array().unwrap().iter().map(|of| of["key"].clone()).collect();
    assert_eq!(keys, ["order-1", "order-2"]);
    let ids: Vec<&str> = (0..2).map(|n| listed[n]["id"].as_str().unwrap()).collect();

    let shown = run(&["show", ids[0], "--json"]).ends_with(0).json();
    assert_eq!((&shown["status"], &shown["saga"]), (&"unresolved".into(), &"order".into()));
    let entries = shown["entries"].as_array().unwrap();
    assert!(entries.iter().any(|of| of["kind"] == "undo_failed" && of["step"] == "pay"), "{shown}");
    let lines = run(&["show", ids[0]]).ends_with(0);
    assert!(lines.told().contains("the bank is closed"), "{}", lines.told());
    assert!(lines.lines().iter().all(|line| line.chars().count() <= 80), "{}", lines.told());

    run(&["resolve", ids[0], "--note", "paid back by hand"]).ends_with(0);
    assert!(
        run(&["resolve", ids[0], "--note", "again"]).ends_with(3).told().contains("not unresolved")
    );
    let resolved = run(&["show", ids[0], "--json"]).ends_with(0).json();
    assert_eq!(
        (&resolved["status"], &resolved["note"]),
        (&"resolved".into(), &"paid back by hand".into())
    );
    run(&["retry", ids[1]]).ends_with(0);
    assert_eq!(run(&["show", ids[1], "--json"]).ends_with(0).json()["status"], "compensating");
    run(&["unresolved", "order"]).ends_with(0);

    let nobody = uuid::Uuid::new_v4().to_string();
    for command in
        [&["show", &nobody][..], &["resolve", &nobody, "--note", "x"], &["retry", &nobody]]
    {
        assert!(run(command).ends_with(1).told().contains(&nobody));
    }
}

fn prefix() -> String {
    format!("cli_{}_", &uuid::Uuid::new_v4().simple().to_string()[..8])
}

/// Makes the tables, fills them, and hands them to the program.
macro_rules! on_database {
    ($name:ident, $pool:ty, $journal:ident, $variable:literal, $default:literal) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let url = std::env::var($variable).unwrap_or_else(|_| $default.to_owned());
            let (pool, prefix) = (<$pool>::connect(&url).await.unwrap(), prefix());
            let journal = $journal::new(pool.clone()).table_prefix(&prefix).unwrap();
            journal.migrate().await.unwrap();
            tear(journal).await;
            let at_work = prefix.clone();
            let looked =
                tokio::task::spawn_blocking(move || looks_after_them(&url, &at_work)).await;
            for table in ["saga_signals", "saga_journal", "saga", "schema"] {
                let drop = sqlx::AssertSqlSafe(format!("DROP TABLE IF EXISTS {prefix}{table}"));
                sqlx::query(drop).execute(&pool).await.unwrap();
            }
            looked.unwrap();
        }
    };
}

on_database!(
    postgres,
    sqlx::PgPool,
    PostgresSagaJournal,
    "ACEMQ_TEST_POSTGRES",
    "postgres://postgres@127.0.0.1:5432/test"
);
on_database!(
    mysql,
    sqlx::MySqlPool,
    MySqlSagaJournal,
    "ACEMQ_TEST_MYSQL",
    "mysql://root@127.0.0.1:3306/test"
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let file = std::env::temp_dir().join(format!("acemq-{}.db", prefix()));
    let url = format!("sqlite:{}?mode=rwc", file.display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let journal = SqliteSagaJournal::new(pool.clone());
    journal.migrate().await.unwrap();
    tear(journal).await;
    pool.close().await;
    let looked = tokio::task::spawn_blocking(move || looks_after_them(&url, "acemq_")).await;
    std::fs::remove_file(file).unwrap();
    looked.unwrap();
}
