//! What can fail below a handler: the database or the messaging.

#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Messaging(#[from] acemq::Error),
}

pub type Result<T> = std::result::Result<T, ShopError>;

/// A refusal that trying again would not change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Another run has finished the order meanwhile.
#[derive(Debug, thiserror::Error)]
#[error("the order is no longer open")]
pub struct NotOpen;
