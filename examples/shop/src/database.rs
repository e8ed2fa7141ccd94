//! The pool, the tables, and how the database is.

use std::time::Duration;

use acemq::{BoxError, ComponentHealth, HealthSource};
use sqlx::{PgPool, postgres::PgPoolOptions};

/// A number of the shop's own, so that of several instances one migrates.
const MIGRATION_LOCK: i64 = 0x5348_4f50;

pub async fn open(url: &str) -> Result<PgPool, BoxError> {
    let options = PgPoolOptions::new().max_connections(20).acquire_timeout(Duration::from_secs(5));
    let pool = options.connect(url).await?;
    let mut tx = pool.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK).execute(&mut *tx).await?;
    sqlx::raw_sql(include_str!("../migrations/0001_shop.sql")).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(pool)
}

/// Makes the database a part of `mq.health()`.
pub struct DatabaseHealth(pub PgPool);

impl HealthSource for DatabaseHealth {
    fn health(&self) -> std::pin::Pin<Box<dyn Future<Output = ComponentHealth> + Send + '_>> {
        Box::pin(async {
            let health = ComponentHealth::up("database", "shop");
            match sqlx::query("SELECT 1").execute(&self.0).await {
                Ok(_) => health,
                Err(error) => health.down(error.to_string()),
            }
        })
    }
}
