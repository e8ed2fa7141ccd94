use acemq::outbox::{OutboxRecord, PostgresOutbox};

async fn add(outbox: PostgresOutbox, mut connection: sqlx::PgConnection, record: OutboxRecord) {
    outbox.add(&mut connection, record).await.unwrap();
}

fn main() {}
