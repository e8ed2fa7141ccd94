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
    use lapin::types::{generation, parsing};
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::message::random_tables;

    /// A value of any of AMQP's types, also those that this crate never writes.
    fn any_value() -> impl Strategy<Value = AMQPValue> {
        let text = || vec(any::<u8>(), 0..20);
        let scalar = prop_oneof![
            any::<bool>().prop_map(AMQPValue::Boolean),
            any::<i8>().prop_map(AMQPValue::ShortShortInt),
            any::<u8>().prop_map(AMQPValue::ShortShortUInt),
            any::<i16>().prop_map(AMQPValue::ShortInt),
            any::<u16>().prop_map(AMQPValue::ShortUInt),
            any::<i32>().prop_map(AMQPValue::LongInt),
            any::<u32>().prop_map(AMQPValue::LongUInt),
            any::<i64>().prop_map(AMQPValue::LongLongInt),
            prop::num::f32::ANY.prop_map(AMQPValue::Float),
            prop::num::f64::ANY.prop_map(AMQPValue::Double),
            (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| {
                AMQPValue::DecimalValue(DecimalValue { scale, value })
            }),
            text().prop_map(|text| AMQPValue::LongString(text.into())),
            text().prop_map(|bytes| AMQPValue::ByteArray(bytes.as_slice().into())),
            any::<u64>().prop_map(AMQPValue::Timestamp),
            Just(AMQPValue::Void),
        ];
        scalar.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4)
                    .prop_map(|values| AMQPValue::FieldArray(FieldArray::from(values))),
                vec(("[a-z]{0,6}", inner), 0..4).prop_map(|table| {
                    let mut fields = FieldTable::default();
                    for (name, value) in table {
                        fields.insert(name.into(), value);
                    }
                    AMQPValue::FieldTable(fields)
                }),
            ]
        })
    }

    /// The bytes of a table as they stand in a frame.
    fn encoded(fields: &FieldTable) -> Vec<u8> {
        let written = generation::gen_field_table::<Vec<u8>>(fields)(Vec::new().into());
        written.unwrap().into_inner().0
    }

    proptest! {
        #![proptest_config(random_tables::cases(300))]

        #[test]
        fn a_table_of_any_peer_is_read_and_goes_out_again_as_it_reads(value in any_value()) {
            let read = header_value(&value);
            let written = amqp_value(&read).unwrap();
            prop_assert_eq!(format!("{:?}", header_value(&written)), format!("{read:?}"));
        }

        #[test]
        fn a_damaged_table_is_read_or_refused(
            value in any_value(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut fields = FieldTable::default();
            fields.insert("name".into(), value);
            let mut bytes = encoded(&fields);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok((_, fields)) = parsing::parse_field_table(bytes.as_slice()) {
                let read = headers(&fields);
                prop_assert!(read.encoded_len() > 0 || read.is_empty());
            }
        }

        #[test]
        fn what_this_crate_writes_arrives(properties in random_tables::received()) {
            let sent = to_amqp(&properties);
            let fits = properties.short_texts().into_iter().all(|(_, text)| text.len() <= 255);
            if let Ok(sent) = sent {
                // NaN does not equal itself.
                prop_assert_eq!(format!("{:?}", from_amqp(&sent)), format!("{properties:?}"));
            } else {
                let names = format!("{:?}", properties.headers);
                prop_assert!(!fits || names.len() > 255);
            }
        }
    }

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
