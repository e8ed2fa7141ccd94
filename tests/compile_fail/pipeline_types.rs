//! A step takes what the one before returns.

use acemq::{AceMq, HandlerError, Message};

async fn count(text: Message<String>) -> Result<Option<usize>, HandlerError> {
    Ok(Some(text.payload().len()))
}

async fn shout(text: Message<String>) -> Result<Option<String>, HandlerError> {
    Ok(Some(text.payload().to_uppercase()))
}

fn wrong(mq: &AceMq) {
    let _ = mq.pipeline::<String>("texts").step("count", count).step("shout", shout);
}

fn main() {}
