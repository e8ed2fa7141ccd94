//! Codecs: payloads to bytes and back, with their content types (wire contract, section 15).

use std::sync::Arc;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::BoxError;

/// Turns payloads of type `T` into bytes.
pub trait Encoder<T>: Send + Sync + 'static {
    /// Returns the content type that goes with encoded payloads.
    fn content_type(&self) -> &str;

    /// Encodes a payload.
    ///
    /// # Errors
    ///
    /// Whatever the format reports; the publish then fails before anything is sent.
    fn encode(&self, payload: &T) -> Result<Bytes, BoxError>;
}

/// Turns bytes into payloads of type `T`.
pub trait Decoder<T>: Send + Sync + 'static {
    /// Returns whether a body of this content type can be decoded; `None` is an absent one.
    fn accepts(&self, content_type: Option<&str>) -> bool;

    /// Decodes a body.
    ///
    /// # Errors
    ///
    /// Whatever the format reports; the message is then parked with this text.
    fn decode(&self, body: &Bytes) -> Result<T, BoxError>;
}

/// Both directions of a format, for types that travel both ways.
///
/// Implement [`Encoder`] and [`Decoder`] for a format of your own; this trait follows.
pub trait Codec<T>: Encoder<T> + Decoder<T> {}

impl<T, C: Encoder<T> + Decoder<T>> Codec<T> for C {}

/// A shared encoder encodes.
impl<T, E: Encoder<T> + ?Sized> Encoder<T> for Arc<E> {
    fn content_type(&self) -> &str {
        (**self).content_type()
    }

    fn encode(&self, payload: &T) -> Result<Bytes, BoxError> {
        (**self).encode(payload)
    }
}

/// A shared decoder decodes.
impl<T, D: Decoder<T> + ?Sized> Decoder<T> for Arc<D> {
    fn accepts(&self, content_type: Option<&str>) -> bool {
        (**self).accepts(content_type)
    }

    fn decode(&self, body: &Bytes) -> Result<T, BoxError> {
        (**self).decode(body)
    }
}

/// JSON by serde: the default.
///
/// Writes `application/json`; accepts that, `text/json`, `application/*+json` and an absent type.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonCodec;

impl<T: Serialize> Encoder<T> for JsonCodec {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn encode(&self, payload: &T) -> Result<Bytes, BoxError> {
        Ok(serde_json::to_vec(payload)?.into())
    }
}

impl<T: DeserializeOwned> Decoder<T> for JsonCodec {
    fn accepts(&self, content_type: Option<&str>) -> bool {
        matches_content_type(content_type, |kind| {
            matches!(kind, "application/json" | "text/json")
                || (kind.starts_with("application/") && kind.ends_with("+json"))
        })
        .unwrap_or(true)
    }

    fn decode(&self, body: &Bytes) -> Result<T, BoxError> {
        Ok(serde_json::from_slice(body)?)
    }
}

/// UTF-8 text. Writes `text/plain; charset=utf-8`, accepts `text/*`.
#[derive(Debug, Clone, Copy, Default)]
pub struct TextCodec;

impl Encoder<String> for TextCodec {
    fn content_type(&self) -> &'static str {
        "text/plain; charset=utf-8"
    }

    fn encode(&self, payload: &String) -> Result<Bytes, BoxError> {
        Ok(payload.clone().into())
    }
}

impl Decoder<String> for TextCodec {
    fn accepts(&self, content_type: Option<&str>) -> bool {
        matches_content_type(content_type, |kind| kind.starts_with("text/")).unwrap_or(false)
    }

    fn decode(&self, body: &Bytes) -> Result<String, BoxError> {
        Ok(std::str::from_utf8(body)?.to_owned())
    }
}

/// Bytes as they are. Writes and accepts `application/octet-stream`.
///
/// A consumer of bytes parks everything else, an absent content type included: that one is JSON.
#[derive(Debug, Clone, Copy, Default)]
pub struct BytesCodec;

impl Encoder<Bytes> for BytesCodec {
    fn content_type(&self) -> &'static str {
        "application/octet-stream"
    }

    fn encode(&self, payload: &Bytes) -> Result<Bytes, BoxError> {
        Ok(payload.clone())
    }
}

impl Decoder<Bytes> for BytesCodec {
    fn accepts(&self, content_type: Option<&str>) -> bool {
        matches_content_type(content_type, |kind| kind == "application/octet-stream")
            .unwrap_or(false)
    }

    fn decode(&self, body: &Bytes) -> Result<Bytes, BoxError> {
        Ok(body.clone())
    }
}

/// Matches a content type without its parameters and letter case; `None` where it is absent.
pub(crate) fn matches_content_type(
    content_type: Option<&str>,
    matches: impl FnOnce(&str) -> bool,
) -> Option<bool> {
    let kind = content_type?.split(';').next().unwrap_or_default().trim();
    (!kind.is_empty()).then(|| matches(&kind.to_ascii_lowercase()))
}
