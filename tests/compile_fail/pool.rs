use acemq::outbox::{OutboxRecord, PostgresOutbox};

async fn add(outbox: PostgresOutbox, mut pool: sqlx::PgPool, record: OutboxRecord) {
    outbox.add(&mut pool, record).await.unwrap();
}

fn main() {}
