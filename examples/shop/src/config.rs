//! What the environment says, with defaults for a start on a developer's machine.

use std::{fmt::Display, net::SocketAddr, str::FromStr, time::Duration};

use acemq::BoxError;

#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    pub broker: String,
    pub database: String,
    /// The first part of every exchange's and queue's name.
    pub prefix: String,
    /// The provider refuses payments above it.
    pub payment_limit: i64,
    pub reminder_after: Duration,
    /// How long running handlers may take after SIGTERM; keep it below the orchestrator's limit.
    pub shutdown: Duration,
}

impl Config {
    pub fn from_env() -> Result<Self, BoxError> {
        Ok(Self {
            listen: setting("SHOP_LISTEN", "127.0.0.1:8080")?,
            broker: setting("ACEMQ_URL", "amqp://guest:guest@127.0.0.1:5672/%2f")?,
            database: setting("DATABASE_URL", "postgres://postgres@127.0.0.1:5432/shop")?,
            prefix: setting("SHOP_PREFIX", "shop")?,
            payment_limit: setting("SHOP_PAYMENT_LIMIT_CENTS", "100000")?,
            reminder_after: Duration::from_secs(setting("SHOP_REMINDER_SECONDS", "259200")?),
            shutdown: Duration::from_secs(setting("SHOP_SHUTDOWN_SECONDS", "20")?),
        })
    }
}

fn setting<T: FromStr<Err: Display>>(name: &str, default: &str) -> Result<T, BoxError> {
    let text = std::env::var(name).unwrap_or_else(|_| default.to_owned());
    // The text stays out of the message: a URL may hold a password.
    text.parse().map_err(|error| format!("{name} cannot be used: {error}").into())
}
