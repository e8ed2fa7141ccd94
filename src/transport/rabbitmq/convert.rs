//! Between this crate's values and lapin's.

use lapin::{
    BasicProperties,
    types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString},
};

use crate::{
    error::{Error, Result},
    message::{HeaderValue, Headers, Properties},
};

/// A short string; one over 255 bytes is refused here rather than panicking in the codec.
pub(super) fn short(field: &'static str, text: &str) -> Result<ShortString> {
    ShortString::try_new(text).map_err(|_| {
        Error::invalid(field, text, format!("is {} bytes long; AMQP allows 255", text.len()))
    })
}

pub(super) fn table(headers: &Headers) -> Result<FieldTable> {
    let mut table = FieldTable::default();
    for (name, value) in headers.iter() {
        table.insert(short("header name", name)?, amqp_value(value)?);
    }
    Ok(table)
}

fn amqp_value(value: &HeaderValue) -> Result<AMQPValue> {
    Ok(match value {
        HeaderValue::Bool(value) => AMQPValue::Boolean(*value),
        HeaderValue::Int(number) => AMQPValue::LongInt(*number),
        HeaderValue::Long(number) => AMQPValue::LongLongInt(*number),
        HeaderValue::Double(number) => AMQPValue::Double(*number),
        HeaderValue::Decimal { scale, value } => {
            AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value })
        }
        HeaderValue::Text(text) => AMQPValue::LongString(text.as_str().into()),
        HeaderValue::Bytes(bytes) => AMQPValue::ByteArray(bytes.as_ref().into()),
        HeaderValue::Timestamp(seconds) => AMQPValue::Timestamp(*seconds),
        HeaderValue::List(values) => {
            let values: Result<Vec<_>> = values.iter().map(amqp_value).collect();
            AMQPValue::FieldArray(FieldArray::from(values?))
        }
        HeaderValue::Table(nested) => AMQPValue::FieldTable(table(nested)?),
        HeaderValue::Null => AMQPValue::Void,
    })
}

pub(super) fn headers(table: &FieldTable) -> Headers {
    table.inner().iter().map(|(name, value)| (name.as_str(), header_value(value))).collect()
}

fn header_value(value: &AMQPValue) -> HeaderValue {
    match value {
        AMQPValue::Boolean(value) => HeaderValue::Bool(*value),
        AMQPValue::ShortShortInt(number) => HeaderValue::Int(i32::from(*number)),
        AMQPValue::ShortShortUInt(number) => HeaderValue::Int(i32::from(*number)),
        AMQPValue::ShortInt(number) => HeaderValue::Int(i32::from(*number)),
        AMQPValue::ShortUInt(number) => HeaderValue::Int(i32::from(*number)),
        AMQPValue::LongInt(number) => HeaderValue::Int(*number),
        AMQPValue::LongUInt(number) => HeaderValue::Long(i64::from(*number)),
        AMQPValue::LongLongInt(number) => HeaderValue::Long(*number),
        AMQPValue::Float(number) => HeaderValue::Double(f64::from(*number)),
        AMQPValue::Double(number) => HeaderValue::Double(*number),
        AMQPValue::DecimalValue(decimal) => {
            HeaderValue::Decimal { scale: decimal.scale, value: decimal.value }
        }
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().to_owned()),
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => HeaderValue::Text(text.to_owned()),
            Err(_) => HeaderValue::Bytes(text.as_bytes().to_vec().into()),
        },
        AMQPValue::FieldArray(values) => {
            HeaderValue::List(values.as_slice().iter().map(header_value).collect())
        }
        AMQPValue::Timestamp(seconds) => HeaderValue::Timestamp(*seconds),
        AMQPValue::FieldTable(nested) => HeaderValue::Table(headers(nested)),
        AMQPValue::ByteArray(bytes) => HeaderValue::Bytes(bytes.as_slice().to_vec().into()),
        AMQPValue::Void => HeaderValue::Null,
    }
}

pub(super) fn to_amqp(properties: &Properties) -> Result<BasicProperties> {
    let mut amqp = BasicProperties::default()
        .with_headers(table(&properties.headers)?)
        .with_delivery_mode(if properties.persistent { 2 } else { 1 });
    if let Some(priority) = properties.priority {
        amqp = amqp.with_priority(priority);
    }
    if let Some(seconds) = properties.timestamp {
        amqp = amqp.with_timestamp(seconds);
    }
    for (field, text) in properties.short_texts() {
        let text = short(field, text)?;
        amqp = match field {
            "message_id" => amqp.with_message_id(text),
            "content_type" => amqp.with_content_type(text),
            "content_encoding" => amqp.with_content_encoding(text),
            "correlation_id" => amqp.with_correlation_id(text),
            "reply_to" => amqp.with_reply_to(text),
            "expiration" => amqp.with_expiration(text),
            "type" => amqp.with_type(text),
            "user_id" => amqp.with_user_id(text),
            _ => amqp.with_app_id(text),
        };
    }
    Ok(amqp)
}

pub(super) fn from_amqp(amqp: &BasicProperties) -> Properties {
    let text = |field: &Option<ShortString>| field.as_ref().map(|text| text.as_str().to_owned());
    Properties {
        headers: amqp.headers().as_ref().map(headers).unwrap_or_default(),
        message_id: text(amqp.message_id()),
        content_type: text(amqp.content_type()),
        content_encoding: text(amqp.content_encoding()),
        persistent: *amqp.delivery_mode() == Some(2),
        priority: *amqp.priority(),
        correlation_id: text(amqp.correlation_id()),
        reply_to: text(amqp.reply_to()),
        expiration: text(amqp.expiration()),
        timestamp: *amqp.timestamp(),
        kind: text(amqp.kind()),
        user_id: text(amqp.user_id()),
        app_id: text(amqp.app_id()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_and_header_kind_survives_the_trip_through_lapin() {
        let mut nested = Headers::new();
        nested.insert("deep", HeaderValue::Null);
        let properties = Properties {
            headers: [
                ("bool", HeaderValue::Bool(true)),
                ("int", HeaderValue::Int(-1)),
                ("long", HeaderValue::Long(i64::MIN)),
                ("double", HeaderValue::Double(1.5)),
                ("decimal", HeaderValue::Decimal { scale: 2, value: 314 }),
                ("text", HeaderValue::from("日本語")),
                ("bytes", HeaderValue::Bytes(vec![0, 255].into())),
                ("time", HeaderValue::Timestamp(u64::MAX)),
                ("list", HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::Null])),
                ("table", HeaderValue::Table(nested)),
            ]
            .into_iter()
            .collect(),
            message_id: Some("id".into()),
            content_type: Some("application/json".into()),
            content_encoding: Some("gzip".into()),
            persistent: true,
            priority: Some(9),
            correlation_id: Some("c".into()),
            reply_to: Some("r".into()),
            expiration: Some("1000".into()),
            timestamp: Some(0),
            kind: Some("t".into()),
            user_id: Some("guest".into()),
            app_id: Some("a".into()),
        };
        assert_eq!(from_amqp(&to_amqp(&properties).unwrap()), properties);
    }

    #[test]
    fn a_name_over_255_bytes_is_an_error_that_says_so() {
        let long = "é".repeat(128);
        let error = short("routing_key", &long).unwrap_err().to_string();
        assert!(error.contains("routing_key") && error.contains("256 bytes"), "{error}");
    }
}
