//! What lapin's errors and the broker's reply texts mean to a caller.

use lapin::{ErrorKind, protocol::AMQPErrorKind};

use crate::error::Error;

/// The broker's reply code and text, where the error carries one.
pub(super) fn reply(error: &lapin::Error) -> Option<(u16, &str)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().as_str())),
        _ => None,
    }
}

/// Whether the error closed one channel and left the connection alone.
pub(super) fn is_of_the_channel(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(e) if matches!(e.kind(), AMQPErrorKind::Soft(_)))
}

/// The failure of an operation that is on its own channel.
pub(super) fn of_operation(error: &lapin::Error) -> Error {
    match reply(error) {
        Some((code, text)) if is_of_the_channel(error) => from_reply(code, text),
        _ => interrupted(error),
    }
}

/// The failure of a declaration. RabbitMQ closes the whole connection over some that it does not
/// take, such as a transient queue where those are no longer permitted (541) and what a kind of
/// queue cannot do (530, 540).
pub(super) fn of_declaration(error: &lapin::Error) -> Error {
    match reply(error) {
        Some((code @ (530 | 540 | 541), text)) => from_reply(code, text),
        _ => of_operation(error),
    }
}

/// The failure of an operation that something else ended.
pub(super) fn interrupted(error: &lapin::Error) -> Error {
    Error::Interrupted { reason: error.to_string() }
}

/// A channel-level refusal, read from the broker's reply.
pub(super) fn from_reply(code: u16, text: &str) -> Error {
    match code {
        404 => Error::NotFound { reason: text.to_owned() },
        406 => {
            mismatch(text).unwrap_or_else(|| Error::BrokerRefused { code, reason: text.to_owned() })
        }
        _ => Error::BrokerRefused { code, reason: text.to_owned() },
    }
}

/// Reads `inequivalent arg 'A' for queue 'Q' in vhost 'V': received F but current is G`.
fn mismatch(text: &str) -> Option<Error> {
    let rest = text.split_once("inequivalent arg '")?.1;
    let (argument, rest) = rest.split_once("' for ")?;
    let (object, rest) = rest.split_once(" '")?;
    let (name, rest) = rest.split_once("' in vhost ")?;
    let (_, rest) = rest.split_once("received ")?;
    let (wanted, found) = rest.split_once(" but current is ")?;
    Some(Error::TopologyMismatch {
        object: object.to_owned(),
        name: name.to_owned(),
        argument: argument.to_owned(),
        wanted: readable(wanted),
        found: readable(found),
    })
}

/// Drops the article and type that RabbitMQ prints before a value.
fn readable(value: &str) -> String {
    value
        .strip_prefix("the value ")
        .or_else(|| value.strip_prefix("an "))
        .unwrap_or(value)
        .trim_end_matches('.')
        .to_owned()
}

/// A refused connection: for good, or worth another attempt.
pub(super) fn of_dial(error: lapin::Error, endpoint: &str) -> Error {
    // 403: credentials, or no permission for the virtual host; 530: no such virtual host.
    if let Some((403 | 530, text)) = reply(&error) {
        return Error::Refused { endpoint: endpoint.to_owned(), reason: text.to_owned() };
    }
    Error::Connect { endpoint: endpoint.to_owned(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_406_names_the_queue_the_argument_and_both_values() {
        let text = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'orders' in vhost \
                    '/': received the value '20' of type 'signedint' but current is the value '10' of type 'signedint'";
        let Error::TopologyMismatch { object, name, argument, wanted, found } =
            from_reply(406, text)
        else {
            panic!("not read")
        };
        assert_eq!((object.as_str(), name.as_str()), ("queue", "orders"));
        assert_eq!(argument, "x-message-ttl");
        assert!(wanted.contains("20") && found.contains("10"), "{wanted} / {found}");
    }

    #[test]
    fn a_406_of_another_kind_keeps_the_brokers_words() {
        let error = from_reply(406, "PRECONDITION_FAILED - unknown delivery tag 7");
        assert!(matches!(error, Error::BrokerRefused { code: 406, .. }), "{error}");
    }
}
