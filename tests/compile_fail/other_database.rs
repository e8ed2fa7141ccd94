use acemq::outbox::{OutboxRecord, PostgresOutbox};

async fn add(outbox: PostgresOutbox, pool: sqlx::SqlitePool, record: OutboxRecord) {
    let mut tx = pool.begin().await.unwrap();
    outbox.add(&mut tx, record).await.unwrap();
}

fn main() {}
