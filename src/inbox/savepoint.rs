//! The savepoint behind which each message of a batch is worked on.

use crate::{
    error::Result,
    store::{Database, OwnedTransaction},
};

const SET: &str = "SAVEPOINT acemq_message";
/// Keeps what was done since the savepoint and sets it anew, in one round trip.
const MOVE: &str = "RELEASE SAVEPOINT acemq_message; SAVEPOINT acemq_message";
const ROLL_BACK: &str = "ROLLBACK TO SAVEPOINT acemq_message";

/// Where the savepoint of a transaction stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Savepoint {
    /// There is none.
    #[default]
    Unset,
    /// Nothing was done since.
    Clean,
    /// Something may have been done since.
    Passed,
}

impl Savepoint {
    /// Lets the next message start behind a savepoint; what was done before it is kept.
    pub(super) async fn set<D: Database>(&mut self, tx: &mut OwnedTransaction<D>) -> Result<()> {
        match self {
            Self::Unset => D::run(tx, SET).await?,
            Self::Passed => D::run(tx, MOVE).await?,
            Self::Clean => {}
        }
        *self = Self::Passed;
        Ok(())
    }

    /// Undoes what was done since the savepoint, which stays where it is.
    pub(super) async fn roll_back<D: Database>(
        &mut self,
        tx: &mut OwnedTransaction<D>,
    ) -> Result<()> {
        D::run(tx, ROLL_BACK).await?;
        *self = Self::Clean;
        Ok(())
    }
}
