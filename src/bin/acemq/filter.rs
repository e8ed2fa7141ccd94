//! Which messages of a dead-letter queue are meant.

use std::time::Duration;

use acemq::{AceMq, consume::ReplayFilter};
use clap::Args;

/// The filters that `show` and `replay` have in common. All must pick a message.
#[derive(Args, Default)]
pub struct Filter {
    /// Only messages of this type
    #[arg(long = "type", value_name = "TYPE")]
    message_type: Option<String>,
    /// Only the message with this id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only messages whose error contains this text
    #[arg(long = "error", value_name = "TEXT")]
    error_contains: Option<String>,
    /// Only messages with this value in a header; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,
    /// Only messages that were first published at least this long ago, such as `2h`
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    min_age: Option<Duration>,
    /// Only messages that were first published at most this long ago
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    max_age: Option<Duration>,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("is not of the form NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Filter {
    /// A replay of what the filter picks.
    pub fn of(self, mq: &AceMq, queue: &str) -> acemq::consume::ReplayBuilder {
        let mut filter = ReplayFilter::new();
        if let Some(message_type) = self.message_type {
            filter = filter.message_type(message_type);
        }
        if let Some(id) = self.id {
            filter = filter.message_id(id);
        }
        if let Some(text) = self.error_contains {
            filter = filter.error_contains(text);
        }
        if let Some(age) = self.min_age {
            filter = filter.min_age(age);
        }
        if let Some(age) = self.max_age {
            filter = filter.max_age(age);
        }
        let headers = self.headers;
        mq.replay(queue).filter(filter).matching(move |candidate| {
            let has = |(name, value): &(String, String)| {
                candidate.headers().get(name).is_some_and(|found| reads_as(found, value))
            };
            headers.iter().all(has)
        })
    }
}

/// Whether a header reads as this text, whatever its type on the wire is.
fn reads_as(found: &acemq::HeaderValue, text: &str) -> bool {
    use acemq::HeaderValue;
    match found {
        HeaderValue::Text(found) => found == text,
        HeaderValue::Bool(found) => found.to_string() == text,
        HeaderValue::Double(found) => text.parse() == Ok(*found),
        found => found.as_i64().is_some_and(|found| found.to_string() == text),
    }
}
