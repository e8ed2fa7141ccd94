//! Header tables and their values.

use std::collections::BTreeMap;

use bytes::Bytes;

/// One value in a header table.
///
/// The variants are the kinds of value that AMQP 0-9-1 tables hold, with integers of any width
/// widened to [`Int`](Self::Int) (at most 32 bits) or [`Long`](Self::Long).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HeaderValue {
    /// A truth value.
    Bool(bool),
    /// A 32-bit integer.
    Int(i32),
    /// A 64-bit integer.
    Long(i64),
    /// A floating-point number.
    Double(f64),
    /// A decimal: `value` divided by ten to the power of `scale`.
    Decimal {
        /// The power of ten to divide by.
        scale: u8,
        /// The unscaled value.
        value: u32,
    },
    /// Text.
    Text(String),
    /// Bytes that are not text, or that the sender marked as bytes.
    Bytes(Bytes),
    /// Seconds since the epoch.
    Timestamp(u64),
    /// A list of values.
    List(Vec<HeaderValue>),
    /// A nested table.
    Table(Headers),
    /// Present, but without a value.
    Null,
}

impl HeaderValue {
    /// Returns the text of a [`Text`](Self::Text) value.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the number of an integer value of either width.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(i64::from(*number)),
            Self::Long(number) => Some(*number),
            _ => None,
        }
    }

    /// Reads text leniently: bytes as UTF-8 with replacement, scalars in their plain form, empty
    /// text and anything else as absent (wire contract, section 1).
    pub(crate) fn lenient_text(&self) -> Option<String> {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Long(number) => number.to_string(),
            Self::Double(number) => number.to_string(),
            Self::Timestamp(seconds) => seconds.to_string(),
            Self::Decimal { .. } | Self::List(_) | Self::Table(_) | Self::Null => return None,
        };
        (!text.is_empty()).then_some(text)
    }

    /// Reads a number leniently: integers of any width, and text that holds one.
    pub(crate) fn lenient_i64(&self) -> Option<i64> {
        match self {
            Self::Int(_) | Self::Long(_) => self.as_i64(),
            Self::Text(text) => text.trim().parse().ok(),
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.trim().parse().ok(),
            _ => None,
        }
    }

    /// An upper bound of the bytes this value takes in an encoded table.
    pub(crate) fn encoded_len(&self) -> usize {
        1 + match self {
            Self::Bool(_) => 1,
            Self::Int(_) => 4,
            Self::Long(_) | Self::Double(_) | Self::Timestamp(_) => 8,
            Self::Decimal { .. } => 5,
            Self::Text(text) => 4 + text.len(),
            Self::Bytes(bytes) => 4 + bytes.len(),
            Self::List(values) => 4 + values.iter().map(Self::encoded_len).sum::<usize>(),
            Self::Table(table) => table.encoded_len(),
            Self::Null => 0,
        }
    }
}

impl From<&str> for HeaderValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for HeaderValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for HeaderValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i32> for HeaderValue {
    fn from(number: i32) -> Self {
        Self::Int(number)
    }
}

impl From<i64> for HeaderValue {
    fn from(number: i64) -> Self {
        Self::Long(number)
    }
}

impl From<f64> for HeaderValue {
    fn from(number: f64) -> Self {
        Self::Double(number)
    }
}

/// A table of headers, ordered by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Headers(BTreeMap<String, HeaderValue>);

impl Headers {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.0.get(name)
    }

    /// Returns the text of a header that holds text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// Sets a header and returns the value it had.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        value: impl Into<HeaderValue>,
    ) -> Option<HeaderValue> {
        self.0.insert(name.into(), value.into())
    }

    /// Removes a header and returns the value it had.
    pub fn remove(&mut self, name: &str) -> Option<HeaderValue> {
        self.0.remove(name)
    }

    /// Returns the headers in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the table has no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// An upper bound of the bytes this table takes on the wire.
    pub(crate) fn encoded_len(&self) -> usize {
        4 + self.iter().map(|(name, value)| 1 + name.len() + value.encoded_len()).sum::<usize>()
    }
}

impl<N: Into<String>, V: Into<HeaderValue>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        Self(headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Extend<(String, HeaderValue)> for Headers {
    fn extend<I: IntoIterator<Item = (String, HeaderValue)>>(&mut self, headers: I) {
        self.0.extend(headers);
    }
}

impl IntoIterator for Headers {
    type Item = (String, HeaderValue);
    type IntoIter = std::collections::btree_map::IntoIter<String, HeaderValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
