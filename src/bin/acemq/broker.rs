//! Reaching the broker.

use std::time::Duration;

use acemq::{AceMq, BoxError, ManagementApi};

use crate::{Common, needed};

/// How long broker and database are tried: somebody waits for the answer.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Connects, under a name that tells this program apart in the broker's tools.
pub async fn connect(common: &Common) -> Result<AceMq, BoxError> {
    let url = common.broker.as_deref().ok_or_else(|| needed("broker", "ACEMQ_URL"))?;
    Ok(AceMq::options(url)
        .client_name("acemq-cli")
        .wait_for_broker(CONNECT_WITHIN)
        .connect()
        .await?)
}

/// The management API, where it was given.
pub fn management(common: &Common) -> Result<Option<ManagementApi>, BoxError> {
    let Some(url) = &common.management else { return Ok(None) };
    Ok(Some(ManagementApi::new(url)?.virtual_host(common.virtual_host.as_str())))
}
