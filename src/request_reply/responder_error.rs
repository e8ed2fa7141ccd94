//! How a responder says that it failed: the text of the header `acemq-error`.

use std::fmt;

use crate::error::{cut, with_causes};

/// The longest text that goes into the header, or is taken out of it.
const MAX_MESSAGE: usize = 8 * 1024;

/// The longest name of a failure.
const MAX_TYPE: usize = 128;

/// The name of a failure that nobody named.
const UNNAMED: &str = "Error";

/// Why a handler has no answer: a name for the caller's code, and a text for people.
///
/// `?` makes one from any error, under the name `Error`. It is not itself an error type, so that a
/// name that was given is not lost by a second `?`.
///
/// # Examples
///
/// ```
/// use acemq::ResponderError;
///
/// fn price_of(sku: &str) -> Result<u64, ResponderError> {
///     match sku {
///         "sku 42" => Ok("1995".parse()?),
///         _ => Err(ResponderError::new("PriceNotFound", format!("no price for {sku}"))),
///     }
/// }
/// assert_eq!(price_of("sku 7").unwrap_err().to_string(), "PriceNotFound: no price for sku 7");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponderError {
    error_type: String,
    message: String,
}

impl ResponderError {
    /// Creates a failure with a name that callers may branch on: keep it over releases.
    ///
    /// White space and control characters are left out of the name, control characters become
    /// spaces in the text, and both are cut to a size that fits into a header. With an empty name
    /// the text goes out alone.
    pub fn new(error_type: impl AsRef<str>, message: impl fmt::Display) -> Self {
        let named = |c: &char| !c.is_whitespace() && !c.is_control();
        let error_type: String = error_type.as_ref().chars().take(MAX_TYPE).filter(named).collect();
        let error_type = cut(&error_type, MAX_TYPE);
        Self { error_type, message: readable(&message.to_string()) }
    }

    /// Returns the name of the failure.
    #[must_use]
    pub fn error_type(&self) -> &str {
        &self.error_type
    }

    /// Returns the text for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The header's text; never empty, since an empty header would mean success.
    pub(super) fn to_header(&self) -> String {
        match (self.error_type.as_str(), self.message.as_str()) {
            ("", "") => UNNAMED.to_owned(),
            ("", message) => message.to_owned(),
            (error_type, message) => format!("{error_type}: {message}"),
        }
    }

    /// Reads the header of any member of the family. A text that does not begin with one word and
    /// a colon has no name.
    pub(super) fn from_header(text: &str) -> Self {
        let is_name = |name: &str| {
            !name.is_empty() && name.len() <= MAX_TYPE && !name.contains(char::is_whitespace)
        };
        match text.split_once(": ").filter(|(name, _)| is_name(name)) {
            Some((name, message)) => Self::new(name, message),
            None => Self::new(UNNAMED, text),
        }
    }

    pub(super) fn into_parts(self) -> (String, String) {
        (self.error_type, self.message)
    }
}

impl fmt::Display for ResponderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_header())
    }
}

impl<E: std::error::Error> From<E> for ResponderError {
    fn from(error: E) -> Self {
        Self::new(UNNAMED, with_causes(&error))
    }
}

/// One line of bounded length: what ends up in logs must not look like several entries.
fn readable(text: &str) -> String {
    let line: String =
        text.chars().take(MAX_MESSAGE + 1).map(|c| if c.is_control() { ' ' } else { c }).collect();
    cut(&line, MAX_MESSAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_travels_with_its_name() {
        let failure = ResponderError::new("PriceNotFound", "no price: sku 42");
        assert_eq!(failure.to_header(), "PriceNotFound: no price: sku 42");
        assert_eq!(ResponderError::from_header(&failure.to_header()), failure);
    }

    #[test]
    fn names_of_every_member_are_read_and_texts_without_one_are_kept_whole() {
        for (header, name, message) in [
            ("Pricing::NotFound: gone", "Pricing::NotFound", "gone"),
            ("System.ArgumentException: bad", "System.ArgumentException", "bad"),
            ("*errors.errorString: bad", "*errors.errorString", "bad"),
            ("no stock for A-1", "Error", "no stock for A-1"),
            ("no stock: A-1", "Error", "no stock: A-1"),
            (": odd", "Error", ": odd"),
            ("Name:", "Error", "Name:"),
        ] {
            let (found_name, found) = ResponderError::from_header(header).into_parts();
            assert_eq!((found_name.as_str(), found.as_str()), (name, message));
        }
    }

    #[test]
    fn sizes_and_control_characters_never_reach_the_wire() {
        let failure = ResponderError::new("A B\n\0C".repeat(100), "é\n\0\r".repeat(1_000_000));
        assert!(failure.error_type().len() <= MAX_TYPE && failure.error_type().starts_with("ABC"));
        assert!(failure.message().len() <= MAX_MESSAGE);
        assert!(!failure.to_header().contains(char::is_control));
        // Never the empty text, which would be read as success.
        assert_eq!(ResponderError::new("", "").to_header(), "Error");
    }
}
