//! The claim cases of the wire contract's vectors, on databases whose clock stands still.

use std::time::Duration;

use serde_json::Value;

use super::OutboxStore;

fn vectors() -> Value {
    let all: Value = serde_json::from_str(include_str!("../../tests/vectors.json")).unwrap();
    all["outbox_claim"].clone()
}

/// The rows as `INSERT` statements, in the order in which they were created.
///
/// This library retires a record when its last attempt is spent, so that is how an exhausted row
/// of the vectors stands in its table.
fn inserts(vectors: &Value, table: &str, time: impl Fn(i64) -> String) -> Vec<String> {
    let mut rows = vectors["rows"].as_array().unwrap().clone();
    rows.sort_by_key(|row| (row["created_at"].as_i64(), row["id"].as_str().map(str::to_owned)));
    let max = vectors["defaults"]["max_attempts"].as_i64();
    let or_null = |at: Option<i64>| at.map_or("NULL".to_owned(), &time);
    let insert = |row: &Value| {
        let retired = (row["attempts"].as_i64() >= max).then_some(4);
        format!(
            "INSERT INTO {table} (id, exchange, routing_key, payload, content_type, headers, \
             created_at, available_at, attempts, lease_until, published_at, retired_at) \
             VALUES ('{}', '', 'k', '', 't', '{{}}', {created}, {created}, {}, {}, {}, {})",
            row["id"].as_str().unwrap(),
            row["attempts"],
            or_null(row["locked_until"].as_i64()),
            or_null(row["published_at"].as_i64()),
            or_null(retired),
            created = time(row["created_at"].as_i64().unwrap()),
        )
    };
    rows.iter().map(insert).collect()
}

/// Claims as a case says, and returns the case's number, what it expects and what it got.
async fn claim<S: OutboxStore>(store: &S, case: &Value) -> (Vec<String>, Vec<String>) {
    let batch = u32::try_from(case["batch"].as_u64().unwrap()).unwrap();
    let claimed = store.claim_batch(batch, Duration::from_secs(60)).await.unwrap();
    let got = claimed.records().iter().map(|r| r.record().id().to_owned()).collect();
    let expect: Vec<String> = serde_json::from_value(case["expect"].clone()).unwrap();
    (expect, got)
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn claims_on_sqlite_take_what_the_vectors_say() {
    let vectors = vectors();
    for case in vectors["cases"].as_array().unwrap() {
        let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
        let pool = options.connect("sqlite::memory:").await.unwrap();
        let now: &'static str = case["now"].to_string().leak();
        let store = super::SqliteOutbox::new(pool.clone()).frozen_at(now);
        store.migrate().await.unwrap();
        for sql in inserts(&vectors, "acemq_outbox", |ms| ms.to_string()) {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        }
        let (expect, got) = claim(&store, case).await;
        assert_eq!(got, expect, "{case}");
    }
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn claims_on_postgres_take_what_the_vectors_say() {
    let url = std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or("postgres://postgres@127.0.0.1:5432/test".to_owned());
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let time = |ms: i64| format!("to_timestamp({ms} / 1000.0)");
    let vectors = vectors();
    for case in vectors["cases"].as_array().unwrap() {
        let prefix = format!("vec_{}_", uuid::Uuid::new_v4().simple());
        let now: &'static str = time(case["now"].as_i64().unwrap()).leak();
        let store = super::PostgresOutbox::new(pool.clone()).table_prefix(&prefix).unwrap();
        let store = store.frozen_at(now);
        store.migrate().await.unwrap();
        for sql in inserts(&vectors, &format!("{prefix}outbox"), time) {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        }
        let (expect, got) = claim(&store, case).await;
        let drop = format!("DROP TABLE {prefix}outbox, {prefix}schema");
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&pool).await.unwrap();
        assert_eq!(got, expect, "{case}");
    }
}
