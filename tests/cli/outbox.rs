//! `acemq outbox` on each database.

use std::time::Duration;

use acemq::{
    MySqlOutbox, OutboxRecord, OutboxStore, PostgresOutbox, SqliteOutbox, outbox::FailedPublish,
};
use serde_json::Value;

use crate::{Run, acemq};

/// A table of its own.
fn prefix() -> String {
    format!("cli_{}_", &uuid::Uuid::new_v4().simple().to_string()[..8])
}

fn record(number: u32) -> OutboxRecord {
    OutboxRecord::json("orders", "order.placed", &number).unwrap()
}

fn delayed() -> OutboxRecord {
    record(9).available_at(chrono::Utc::now() + chrono::TimeDelta::days(1))
}

/// Retires the second record and publishes the first, of three.
async fn wear(outbox: &impl OutboxStore) -> i64 {
    let batch = outbox.claim_batch(2, Duration::from_secs(60)).await.unwrap();
    let seqs: Vec<i64> = batch.records().iter().map(|record| record.seq()).collect();
    outbox.mark_published(batch.token(), &seqs[..1]).await.unwrap();
    let reason = format!("no queue took it, {}", "which is a pity ".repeat(20));
    let failure = FailedPublish::retire(seqs[1], &reason);
    outbox.mark_failed(batch.token(), &[failure]).await.unwrap();
    seqs[1]
}

fn looks_after_it(url: &str, prefix: &str, retired: i64) {
    let run = |arguments: &[&str]| -> Run {
        let common = ["--database", url, "--table-prefix", prefix];
        acemq(&[&common[..], arguments].concat())
    };
    let status = run(&["outbox", "status", "--json"]).ends_with(0).json();
    assert_eq!((&status["waiting"], &status["retired"]), (&Value::from(2), &Value::from(1)));
    assert!(status["oldest_due_seconds"].as_f64().unwrap() >= 0.0);
    run(&["outbox", "status", "--alarm-after", "1h"]).ends_with(3);

    let rows = run(&["outbox", "retired", "--json"]).ends_with(0).json();
    assert_eq!((&rows[0]["seq"], &rows[0]["exchange"]), (&retired.into(), &"orders".into()));
    let lines = run(&["outbox", "retired"]).ends_with(0).lines();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");

    let seq = retired.to_string();
    run(&["outbox", "requeue", "--all", &seq]).ends_with(2);
    let requeued = run(&["outbox", "requeue", &seq, "--json"]).ends_with(0).json();
    assert_eq!(requeued["requeued"], 1);
    let again = run(&["outbox", "requeue", &seq]).ends_with(3);
    assert!(again.told().contains("not retired"), "{}", again.told());
    run(&["outbox", "status", "--alarm-after", "1h"]).ends_with(0);

    let listed = run(&["schedules", "list", "--json"]).ends_with(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let lines = run(&["schedules", "list"]).ends_with(0).lines();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    let id = listed[0]["id"].as_str().unwrap();
    run(&["schedules", "cancel", id, "nobody"]).ends_with(1);
    let cancelled = run(&["schedules", "cancel", id, "nobody", "--yes", "--json"]).ends_with(3);
    assert_eq!(cancelled.json()["cancelled"], serde_json::json!([id]));
    assert_eq!(cancelled.json()["not_scheduled"], serde_json::json!(["nobody"]));
    assert_eq!(run(&["schedules", "list"]).ends_with(0).lines(), ["nothing is scheduled"]);

    let refused = run(&["outbox", "purge", "--older-than", "0s"]).ends_with(1);
    assert!(refused.told().contains("--yes"), "{}", refused.told());
    let purged = run(&["outbox", "purge", "--older-than", "0s", "--yes", "--json"]).ends_with(0);
    assert_eq!(purged.json()["deleted"], 1);
}

/// Makes the table, wears it, and hands it to the program.
macro_rules! on_database {
    ($name:ident, $pool:ty, $outbox:ident, $url:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let (url, prefix) = ($url, prefix());
            let pool = <$pool>::connect(&url).await.unwrap();
            let outbox = $outbox::new(pool.clone()).table_prefix(&prefix).unwrap();
            outbox.migrate().await.unwrap();
            for number in 0..3 {
                let mut tx = pool.begin().await.unwrap();
                outbox.add(&mut tx, record(number)).await.unwrap();
                tx.commit().await.unwrap();
            }
            let mut tx = pool.begin().await.unwrap();
            outbox.add(&mut tx, delayed()).await.unwrap();
            tx.commit().await.unwrap();
            let retired = wear(&outbox).await;
            let at_work = prefix.clone();
            let looked =
                tokio::task::spawn_blocking(move || looks_after_it(&url, &at_work, retired));
            let looked = looked.await;
            for table in ["outbox", "schema"] {
                let drop = sqlx::AssertSqlSafe(format!("DROP TABLE IF EXISTS {prefix}{table}"));
                sqlx::query(drop).execute(&pool).await.unwrap();
            }
            looked.unwrap();
        }
    };
}

fn url(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}

on_database!(
    postgres,
    sqlx::PgPool,
    PostgresOutbox,
    url("ACEMQ_TEST_POSTGRES", "postgres://postgres@127.0.0.1:5432/test")
);
on_database!(
    mysql,
    sqlx::MySqlPool,
    MySqlOutbox,
    url("ACEMQ_TEST_MYSQL", "mysql://root@127.0.0.1:3306/test")
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let file = std::env::temp_dir().join(format!("acemq-{}.db", prefix()));
    let url = format!("sqlite:{}?mode=rwc", file.display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let outbox = SqliteOutbox::new(pool.clone());
    outbox.migrate().await.unwrap();
    for number in 0..3 {
        let mut tx = outbox.begin().await.unwrap();
        outbox.add(&mut tx, record(number)).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut tx = outbox.begin().await.unwrap();
    outbox.add(&mut tx, delayed()).await.unwrap();
    tx.commit().await.unwrap();
    let retired = wear(&outbox).await;
    pool.close().await;
    let looked = tokio::task::spawn_blocking(move || looks_after_it(&url, "acemq_", retired)).await;
    std::fs::remove_file(file).unwrap();
    looked.unwrap();
}

#[test]
fn a_table_that_is_not_there_is_told() {
    let url = url("ACEMQ_TEST_POSTGRES", "postgres://postgres@127.0.0.1:5432/test");
    let run = acemq(&["--database", &url, "--table-prefix", &prefix(), "outbox", "status"]);
    let told = run.ends_with(1).told();
    assert!(told.contains("outbox"), "{told}");
}
