//! The claim cases of the wire contract's vectors, on databases whose clock stands still, and the
//! plans of the claims.

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
    let claimed = store.claim_batch(batch, Duration::from_mins(1)).await.unwrap();
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

#[cfg(feature = "mysql")]
async fn mysql() -> sqlx::MySqlPool {
    let url =
        std::env::var("ACEMQ_TEST_MYSQL").unwrap_or("mysql://root@127.0.0.1:3306/test".to_owned());
    sqlx::MySqlPool::connect(&url).await.unwrap()
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn claims_on_mysql_take_what_the_vectors_say() {
    let pool = mysql().await;
    let vectors = vectors();
    for case in vectors["cases"].as_array().unwrap() {
        let prefix = format!("vec_{}_", uuid::Uuid::new_v4().simple());
        let now: &'static str = case["now"].to_string().leak();
        let store = super::MySqlOutbox::new(pool.clone()).table_prefix(&prefix).unwrap();
        let store = store.frozen_at(now);
        store.migrate().await.unwrap();
        for sql in inserts(&vectors, &format!("{prefix}outbox"), |ms| ms.to_string()) {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        }
        let (expect, got) = claim(&store, case).await;
        let drop = format!("DROP TABLE {prefix}outbox, {prefix}schema");
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&pool).await.unwrap();
        assert_eq!(got, expect, "{case}");
    }
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_claim_on_mysql_walks_the_indexes_of_waiting_rows() {
    use sqlx::Row;

    let pool = mysql().await;
    let prefix = format!("plan_{}_", uuid::Uuid::new_v4().simple());
    let store = super::MySqlOutbox::new(pool.clone()).table_prefix(&prefix).unwrap();
    store.migrate().await.unwrap();
    let claim = store.claim_sql().replace("LIMIT ?", "LIMIT 100");
    let plan = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("EXPLAIN {claim}")));
    let plan = plan.fetch_all(&pool).await.unwrap();
    let drop = format!("DROP TABLE {prefix}outbox, {prefix}schema");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&pool).await.unwrap();
    let read = |row: &sqlx::mysql::MySqlRow, column: &str| {
        row.try_get_unchecked::<Option<String>, _>(column).unwrap().unwrap_or_default()
    };
    let steps: Vec<_> =
        plan.iter().map(|row| (read(row, "table"), read(row, "key"), read(row, "Extra"))).collect();
    assert_eq!(steps[0].1, "pending", "{steps:?}");
    assert!(steps.iter().all(|step| !step.2.contains("filesort")), "{steps:?}");
}

/// A claim with its parameters as literals, for `EXPLAIN`.
#[cfg(feature = "postgres")]
fn explained(claim: &str) -> String {
    let literals = [("$1", "100"), ("$2", "NULL"), ("$3", "60000"), ("$4", "''")];
    let claim = literals.iter().fold(claim.to_owned(), |sql, (name, is)| sql.replace(name, is));
    format!("EXPLAIN {claim}")
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_claim_on_postgres_never_scans_published_rows_with_or_without_statistics() {
    let url = std::env::var("ACEMQ_TEST_POSTGRES")
        .unwrap_or("postgres://postgres@127.0.0.1:5432/test".to_owned());
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let prefix = format!("plan_{}_", uuid::Uuid::new_v4().simple());
    let store = super::PostgresOutbox::new(pool.clone()).table_prefix(&prefix).unwrap();
    store.migrate().await.unwrap();
    let run = async |sql: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    };
    let fill = |rows: u32, published: &str, key: &str| {
        format!(
            "INSERT INTO {prefix}outbox (id, exchange, routing_key, payload, content_type, \
             headers, ordering_key, published_at) \
             SELECT i, '', 'k', '', 't', '{{}}', {key}, {published} FROM generate_series(1, {rows}) i"
        )
    };
    run(fill(30_000, "now()", "NULL")).await;
    run(fill(100, "NULL", "i % 10")).await;
    for statistics in [false, true] {
        if statistics {
            run(format!("ANALYZE {prefix}outbox")).await;
        }
        let sql = sqlx::AssertSqlSafe(explained(&store.claim_sql()));
        let plan: Vec<String> = sqlx::query_scalar(sql).fetch_all(&pool).await.unwrap();
        let plan = plan.join("\n");
        assert!(!plan.contains("Seq Scan"), "statistics: {statistics}\n{plan}");
        assert!(plan.contains("outbox_pending"), "statistics: {statistics}\n{plan}");
        assert!(plan.contains("outbox_ordered"), "statistics: {statistics}\n{plan}");
    }
    run(format!("DROP TABLE {prefix}outbox, {prefix}schema")).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_claim_on_sqlite_walks_the_indexes_of_waiting_rows() {
    let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = options.connect("sqlite::memory:").await.unwrap();
    let store = super::SqliteOutbox::new(pool.clone());
    store.migrate().await.unwrap();
    let sql = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", store.claim_sql()));
    let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(sql).fetch_all(&pool).await.unwrap();
    let plan: String = plan.into_iter().map(|(_, _, _, line)| line + "\n").collect();
    assert!(plan.contains("INDEX acemq_outbox_pending (available_at<?)"), "{plan}");
    assert!(plan.contains("INDEX acemq_outbox_ordered (ordering_key>?)"), "{plan}");
    assert!(plan.contains("INDEX acemq_outbox_ordered (ordering_key=?)"), "{plan}");
    for scan in ["SCAN o\n", "SCAN e\n", "SCAN acemq_outbox\n"] {
        assert!(!plan.contains(scan), "{plan}");
    }
}
