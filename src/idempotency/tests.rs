//! The idempotency cases of the wire contract's vectors, on clocks that stand still.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::{Claim, IdempotencyStore, MemoryIdempotencyStore};

fn vectors(section: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../tests/vectors.json")).unwrap();
    all["idempotency"][section].as_array().unwrap().clone()
}

fn name(claim: Claim) -> &'static str {
    match claim {
        Claim::Claimed(_) => "CLAIMED",
        Claim::AlreadyConfirmed => "ALREADY_CONFIRMED",
        Claim::InProgress => "IN_PROGRESS",
    }
}

/// The token of the owner that a row of the vectors names.
fn owner(name: &Value) -> Option<Uuid> {
    match name.as_str()? {
        "me" => Some(Uuid::from_u128(1)),
        _ => Some(Uuid::from_u128(2)),
    }
}

#[tokio::test(start_paused = true)]
async fn claims_in_memory_answer_what_the_vectors_say() {
    tokio::time::advance(Duration::from_secs(10)).await;
    for case in vectors("try_claim") {
        let store = MemoryIdempotencyStore::new();
        let (row, now) = (&case["row"], case["now"].as_i64().unwrap());
        if let Some(ends) = row["expires_at"].as_i64() {
            store.put("m", owner(&row["claimed_by"]), now, ends);
        }
        assert_eq!(name(store.try_claim("c", "m").await.unwrap()), case["expect"], "{case}");
        if let Some(ends) = case["row_after"]["expires_at"].as_i64() {
            let live = Duration::from_millis(ends.abs_diff(now));
            assert_eq!(store.look("m"), Some((false, live)), "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn releases_in_memory_do_what_the_vectors_say() {
    for case in vectors("release") {
        let store = MemoryIdempotencyStore::new();
        store.put("m", owner(&case["row"]["claimed_by"]), 0, 1000);
        let me = owner(&case["by"]).unwrap();
        let released = store.release("c", "m", me).await.unwrap();
        assert_eq!(released, case["expect"] == "deleted", "{case}");
        assert_eq!(store.look("m").is_none(), released, "{case}");
    }
}

/// What the vectors need to know of a database.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
struct Words {
    table: String,
    time: fn(i64) -> String,
    /// A token as a literal.
    token: fn(Uuid) -> String,
    /// Reads a time column as milliseconds.
    millis: &'static str,
}

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
impl Words {
    /// Puts the case's row in place; a release case says nothing of its end.
    fn put(&self, row: &Value, now: i64) -> String {
        let Some(state) = row["state"].as_str() else { return "SELECT 1".to_owned() };
        format!(
            "INSERT INTO {} (consumer, message_id, state, claimed_by, recorded_at, expires_at) \
             VALUES ('c', 'm', '{state}', {}, {}, {})",
            self.table,
            owner(&row["claimed_by"]).map_or("NULL".to_owned(), self.token),
            (self.time)(0),
            (self.time)(row["expires_at"].as_i64().unwrap_or(now + 500)),
        )
    }
}

/// Runs all cases of a database: `$open` gives a store with an empty table whose clock stands at
/// the time given.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
macro_rules! vectors_on {
    ($pool:expr, $store:ident, $words:expr, $prefix:expr) => {{
        let (pool, words, prefix) = ($pool, $words, $prefix);
        let store = super::$store::new(pool.clone()).table_prefix(&prefix).unwrap();
        store.migrate().await.unwrap();
        let run = async |sql: String| {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        };
        for case in vectors("try_claim") {
            let now = case["now"].as_i64().unwrap();
            run(format!("DELETE FROM {}", words.table)).await;
            run(words.put(&case["row"], now)).await;
            let store = store.clone().frozen_at((words.time)(now).leak());
            assert_eq!(name(store.try_claim("c", "m").await.unwrap()), case["expect"], "{case}");
            if let Some(ends) = case["row_after"]["expires_at"].as_i64() {
                let sql =
                    format!("SELECT {} FROM {} WHERE state = 'CLAIMED'", words.millis, words.table);
                let found: i64 =
                    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&pool).await.unwrap();
                assert_eq!(found, ends, "{case}");
            }
        }
        for case in vectors("release") {
            run(format!("DELETE FROM {}", words.table)).await;
            run(words.put(&case["row"], 1000)).await;
            let store = store.clone().frozen_at((words.time)(1000).leak());
            let me = owner(&case["by"]).unwrap();
            let released = store.release("c", "m", me).await.unwrap();
            assert_eq!(released, case["expect"] == "deleted", "{case}");
        }
        run(format!("DROP TABLE {}", words.table)).await;
        run(format!("DROP TABLE {prefix}schema")).await;
    }};
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_does_what_the_vectors_say() {
    let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let words = Words {
        table: "v_idempotency".to_owned(),
        time: |ms| ms.to_string(),
        token: |token| format!("'{token}'"),
        millis: "expires_at",
    };
    let pool = options.connect("sqlite::memory:").await.unwrap();
    vectors_on!(pool, SqliteIdempotencyStore, words, "v_".to_owned());
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn postgres_does_what_the_vectors_say() {
    let url = std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or("postgres://postgres@127.0.0.1:5432/test".to_owned());
    let prefix = format!("v{}_", Uuid::new_v4().simple());
    let words = Words {
        table: format!("{prefix}idempotency"),
        time: |ms| format!("to_timestamp({ms} / 1000.0)"),
        token: |token| format!("'{token}'"),
        millis: "(extract(epoch FROM expires_at) * 1000)::bigint",
    };
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    vectors_on!(pool, PostgresIdempotencyStore, words, prefix);
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn mysql_does_what_the_vectors_say() {
    let url =
        std::env::var("ACEMQ_TEST_MYSQL").unwrap_or("mysql://root@127.0.0.1:3306/test".to_owned());
    let prefix = format!("v{}_", Uuid::new_v4().simple());
    let words = Words {
        table: format!("{prefix}idempotency"),
        time: |ms| ms.to_string(),
        token: |token| format!("'{token}'"),
        millis: "expires_at",
    };
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    vectors_on!(pool, MySqlIdempotencyStore, words, prefix);
}
