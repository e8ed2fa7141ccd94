//! The handle: one [`AceMq`] per application, with everything behind it that survives a loss.
//!
//! Publishing and consuming have a connection each, so that a broker that blocks publishers still
//! delivers to consumers. Each connection is kept up by a supervisor of its own: when it is lost,
//! the supervisor dials again with growing, jittered delays, declares again what was declared
//! through the handle, and only then offers the new connection.

mod core;
mod declared;
mod handle;
mod health;
mod options;
mod plan;
mod session;
mod shutdown;
mod state;

pub use handle::AceMq;
pub use health::{ComponentHealth, Health, HealthSource, HealthStatus};
pub use options::ConnectOptions;
pub use plan::TopologyPlanner;
pub use shutdown::Shutdown;
pub use state::ConnectionState;

pub(crate) use core::Core;
