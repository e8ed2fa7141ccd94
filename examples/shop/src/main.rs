//! A small shop: orders over HTTP, everything after that by messages. See README.md.

#![forbid(unsafe_code)]
#![warn(clippy::pedantic)]

mod app;
mod config;
mod database;
mod error;
mod fulfilment;
mod http;
mod ledger;
mod mails;
mod names;
mod offers;
mod orders;
mod payments;
mod reminders;
mod stock;

use std::io;

use acemq::BoxError;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The shop's own steps, and of the libraries what needs a look. lapin logs bodies of messages.
const LEVELS: &str = "warn,acemq_shop=info,lapin=off";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let levels = EnvFilter::try_from_default_env();
    let levels = levels.unwrap_or_else(|_| EnvFilter::new(LEVELS));
    tracing_subscriber::fmt().with_env_filter(levels).with_writer(io::stderr).init();

    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let app = app::App::start(config::Config::from_env()?).await?;
    println!("listening on {}", app.address);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    app.stop().await?;
    tracing::info!("stopped");
    Ok(())
}
