//! The stored form of headers: JSON that keeps the type of every value.
//!
//! Text, truth values, lists and null are plain JSON. Everything that JSON would blur is an object
//! with one member that names the type: `{"int": 1}`, `{"long": 1}`, `{"double": "1.5"}` (as text,
//! so that no digit, infinity or NaN is lost), `{"decimal": [2, 150]}`, `{"bytes": "00ff"}`,
//! `{"timestamp": 1}`, `{"table": {..}}`. The column holds text, never a database's JSON type,
//! which would refuse or rewrite some of it.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    error::BoxError,
    message::{HeaderValue, Headers},
};

/// Writes headers for a text column.
pub(crate) fn encode(headers: &Headers) -> String {
    Value::Object(table_to_json(headers)).to_string()
}

/// Reads what [`encode`] wrote.
pub(crate) fn decode(text: &str) -> Result<Headers, BoxError> {
    match serde_json::from_str(text)? {
        Value::Object(members) => table_from_json(members),
        _ => Err("stored headers are not a JSON object".into()),
    }
}

fn table_to_json(headers: &Headers) -> Map<String, Value> {
    headers.iter().map(|(name, value)| (name.to_owned(), to_json(value))).collect()
}

fn to_json(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::Bool(value) => json!(value),
        HeaderValue::Int(number) => json!({ "int": number }),
        HeaderValue::Long(number) => json!({ "long": number }),
        HeaderValue::Double(number) => json!({ "double": number.to_string() }),
        HeaderValue::Decimal { scale, value } => json!({ "decimal": [scale, value] }),
        HeaderValue::Text(text) => json!(text),
        HeaderValue::Bytes(bytes) => json!({ "bytes": to_hex(bytes) }),
        HeaderValue::Timestamp(seconds) => json!({ "timestamp": seconds }),
        HeaderValue::List(values) => Value::Array(values.iter().map(to_json).collect()),
        HeaderValue::Table(table) => json!({ "table": table_to_json(table) }),
        HeaderValue::Null => Value::Null,
    }
}

fn table_from_json(members: Map<String, Value>) -> Result<Headers, BoxError> {
    members.into_iter().map(|(name, value)| Ok((name, from_json(value)?))).collect()
}

fn from_json(value: Value) -> Result<HeaderValue, BoxError> {
    Ok(match value {
        Value::Null => HeaderValue::Null,
        Value::Bool(value) => HeaderValue::Bool(value),
        Value::String(text) => HeaderValue::Text(text),
        Value::Array(values) => {
            HeaderValue::List(values.into_iter().map(from_json).collect::<Result<_, _>>()?)
        }
        Value::Object(members) => match members.into_iter().next() {
            Some((kind, value)) => typed(&kind, value)?,
            None => return Err("a stored header value names no type".into()),
        },
        Value::Number(_) => return Err("a stored header number names no type".into()),
    })
}

fn typed(kind: &str, value: Value) -> Result<HeaderValue, BoxError> {
    Ok(match kind {
        "int" => HeaderValue::Int(serde_json::from_value(value)?),
        "long" => HeaderValue::Long(serde_json::from_value(value)?),
        "double" => HeaderValue::Double(serde_json::from_value::<String>(value)?.parse()?),
        "decimal" => {
            let (scale, value) = serde_json::from_value(value)?;
            HeaderValue::Decimal { scale, value }
        }
        "bytes" => HeaderValue::Bytes(from_hex(&serde_json::from_value::<String>(value)?)?),
        "timestamp" => HeaderValue::Timestamp(serde_json::from_value(value)?),
        "table" => HeaderValue::Table(table_from_json(serde_json::from_value(value)?)?),
        other => return Err(format!("a stored header value has the unknown type `{other}`").into()),
    })
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex(text: &str) -> Result<Bytes, BoxError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect::<Option<Vec<u8>>>()
        .map(Bytes::from)
        .ok_or_else(|| "a stored header value is not hexadecimal".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_value() -> impl Strategy<Value = HeaderValue> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(HeaderValue::Bool),
            any::<i32>().prop_map(HeaderValue::Int),
            any::<i64>().prop_map(HeaderValue::Long),
            any::<f64>()
                .prop_filter("NaN is unequal to itself", |n| !n.is_nan())
                .prop_map(HeaderValue::Double),
            Just(HeaderValue::Double(f64::INFINITY)),
            (any::<u8>(), any::<u32>())
                .prop_map(|(scale, value)| HeaderValue::Decimal { scale, value }),
            any::<String>().prop_map(HeaderValue::Text),
            any::<Vec<u8>>().prop_map(|bytes| HeaderValue::Bytes(bytes.into())),
            any::<u64>().prop_map(HeaderValue::Timestamp),
            Just(HeaderValue::Null),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(HeaderValue::List),
                prop::collection::vec((any::<String>(), inner), 0..4)
                    .prop_map(|members| HeaderValue::Table(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_header_value_comes_back_as_it_was(
            members in prop::collection::vec((any::<String>(), any_value()), 0..5)
        ) {
            let headers: Headers = members.into_iter().collect();
            prop_assert_eq!(decode(&encode(&headers)).unwrap(), headers);
        }
    }

    #[test]
    fn what_is_not_a_stored_header_table_is_an_error() {
        for text in ["", "[]", "{\"a\":1}", "{\"a\":{}}", "{\"a\":{\"bytes\":\"0\"}}"] {
            assert!(decode(text).is_err(), "{text} should be refused");
        }
    }
}
