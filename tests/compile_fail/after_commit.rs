use acemq::outbox::{OutboxRecord, PostgresOutbox};

async fn add(outbox: PostgresOutbox, pool: sqlx::PgPool, record: OutboxRecord) {
    let mut tx = pool.begin().await.unwrap();
    tx.commit().await.unwrap();
    outbox.add(&mut tx, record).await.unwrap();
}

fn main() {}
