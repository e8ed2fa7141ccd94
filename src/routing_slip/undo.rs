//! What stops leave behind to undo them, in a header beside the slip.

use serde::{Deserialize, Serialize};

use crate::message::{HeaderValue, Headers};

/// The header that holds what undoes the stops that are done: JSON, the first done first.
///
/// Of this crate, not of the family: other members pass it on as an application's header.
pub(super) const HEADER: &str = "acemq-slip-undo";

/// How one stop is undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Undo {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    /// The stop that is undone, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) data: String,
}

/// Reads the list; none if there is nothing to undo.
pub(super) fn read(headers: &Headers) -> Result<Vec<Undo>, String> {
    let Some(text) = headers.get(HEADER).and_then(HeaderValue::as_str) else {
        return Ok(Vec::new());
    };
    serde_json::from_str(text).map_err(|error| format!("header `{HEADER}` cannot be read: {error}"))
}

pub(super) fn write(undos: &[Undo]) -> String {
    // Texts and names only: there is nothing that JSON could not hold.
    serde_json::to_string(undos).unwrap_or_default()
}
