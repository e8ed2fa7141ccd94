//! The matching of headers exchanges ("Headers Exchange", AMQP concepts).

use super::{reply, stored::type_name};
use crate::{
    error::Result,
    message::{HeaderValue, Headers},
};

/// Which headers must match: `x-match` of the binding.
const X_MATCH: &str = "x-match";

/// Refuses the arguments that a headers exchange does not understand, in RabbitMQ's words.
pub(super) fn check(arguments: &Headers) -> Result<()> {
    let problem = match arguments.get(X_MATCH) {
        None => return Ok(()),
        Some(HeaderValue::Text(text)) => match text.as_str() {
            "all" | "any" | "all-with-x" | "any-with-x" => return Ok(()),
            other => format!(
                "Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x",
                reply::erlang_binary(other)
            ),
        },
        Some(other) => format!(
            "Invalid x-match field type {} (value {}); expected longstr",
            type_name(other),
            other.lenient_text().unwrap_or_default()
        ),
    };
    Err(reply::precondition_failed(problem))
}

/// Returns whether a binding's arguments take a message with these headers.
///
/// Without `x-match` it is `all`. A binding with nothing to match takes every message with `all`
/// and none with `any`.
pub(super) fn matches(arguments: &Headers, headers: &Headers) -> bool {
    let kind = arguments.text(X_MATCH).unwrap_or("all");
    let with_x = kind.ends_with("-with-x");
    let mut wanted = arguments
        .iter()
        .filter(|(name, _)| *name != X_MATCH && (with_x || !name.starts_with("x-")));
    let is_there = |(name, value): (&str, &HeaderValue)| {
        headers.get(name).is_some_and(|found| *value == HeaderValue::Null || same(value, found))
    };
    if kind.starts_with("any") { wanted.any(is_there) } else { wanted.all(is_there) }
}

/// Compares as RabbitMQ does, which looks at the values and not at their types: numbers and times
/// are numbers, texts and bytes are bytes. Within a list or table the types count too.
#[expect(clippy::float_cmp, reason = "it is equality that the broker asks for")]
fn same(one: &HeaderValue, other: &HeaderValue) -> bool {
    use HeaderValue::{Bool, Decimal, Double, List, Null, Table};
    if let (Some(one), Some(other)) = (integer(one), integer(other)) {
        return one == other;
    }
    if let (Some(one), Some(other)) = (bytes(one), bytes(other)) {
        return one == other;
    }
    match (one, other) {
        (Double(one), Double(other)) => one == other,
        (Double(float), number) | (number, Double(float)) => {
            integer(number).is_some_and(|number| is_exactly(*float, number))
        }
        (Bool(one), Bool(other)) => one == other,
        (Null, Null) => true,
        (Decimal { scale, value }, Decimal { scale: other_scale, value: other_value }) => {
            scale == other_scale && value == other_value
        }
        (List(one), List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same_typed(a, b))
        }
        (Table(one), Table(other)) => {
            let pairs = || one.iter().zip(other.iter());
            one.len() == other.len() && pairs().all(|(a, b)| a.0 == b.0 && same_typed(a.1, b.1))
        }
        // Both are empty lists to RabbitMQ.
        (List(list), Table(table)) | (Table(table), List(list)) => {
            list.is_empty() && table.is_empty()
        }
        _ => false,
    }
}

fn same_typed(one: &HeaderValue, other: &HeaderValue) -> bool {
    type_name(one) == type_name(other) && same(one, other)
}

fn integer(value: &HeaderValue) -> Option<i128> {
    match value {
        HeaderValue::Int(number) => Some((*number).into()),
        HeaderValue::Long(number) => Some((*number).into()),
        HeaderValue::Timestamp(seconds) => Some((*seconds).into()),
        _ => None,
    }
}

fn bytes(value: &HeaderValue) -> Option<&[u8]> {
    match value {
        HeaderValue::Text(text) => Some(text.as_bytes()),
        HeaderValue::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// Whether a floating-point number is this whole number.
fn is_exactly(float: f64, number: i128) -> bool {
    // Whole numbers of headers are below 2^64, where the conversion back is exact.
    #[expect(clippy::cast_possible_truncation, reason = "it saturates, far beyond any header")]
    let whole = float as i128;
    float.fract() == 0.0 && whole == number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(values: &[(&str, HeaderValue)]) -> Headers {
        values.iter().cloned().collect()
    }

    #[test]
    fn values_are_compared_and_types_only_within_lists_and_tables() {
        let long = HeaderValue::Long;
        let list = |value: HeaderValue| HeaderValue::List(vec![value]);
        let nested = |value: HeaderValue| HeaderValue::Table(table(&[("k", value)]));
        for (one, other, equal) in [
            (HeaderValue::Int(1), long(1), true),
            (HeaderValue::Int(1), HeaderValue::Double(1.0), true),
            (HeaderValue::Int(1), HeaderValue::Double(1.5), false),
            (long(i64::MAX), HeaderValue::Double(9_223_372_036_854_775_807.0), false),
            (long(5), HeaderValue::Timestamp(5), true),
            (HeaderValue::from("a"), HeaderValue::Bytes("a".into()), true),
            (HeaderValue::from("1"), long(1), false),
            (HeaderValue::Bool(true), long(1), false),
            (HeaderValue::List(vec![]), HeaderValue::Table(Headers::new()), true),
            (list(long(1)), list(long(1)), true),
            (list(long(1)), list(HeaderValue::Int(1)), false),
            (nested(long(1)), nested(long(1)), true),
            (nested(long(1)), nested(HeaderValue::Int(1)), false),
            (HeaderValue::Double(f64::NAN), HeaderValue::Double(f64::NAN), false),
        ] {
            assert_eq!(same(&one, &other), equal, "{one:?} and {other:?}");
            assert_eq!(same(&other, &one), equal, "{other:?} and {one:?}");
        }
    }

    #[test]
    fn names_with_x_count_only_where_the_binding_says_so() {
        let wanted =
            |kind: &str| table(&[("x-match", kind.into()), ("a", 1.into()), ("x-b", 2.into())]);
        let (a, b) = (table(&[("a", 1.into())]), table(&[("x-b", 2.into())]));
        let both = table(&[("a", 1.into()), ("x-b", 2.into()), ("c", 3.into())]);
        for (kind, takes) in [
            ("all", [true, false, true]),
            ("any", [true, false, true]),
            ("all-with-x", [false, false, true]),
            ("any-with-x", [true, true, true]),
        ] {
            let found = [&a, &b, &both].map(|headers| matches(&wanted(kind), headers));
            assert_eq!(found, takes, "{kind}");
        }
    }
}
