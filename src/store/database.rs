//! What a unit of work needs of a database beside beginning and committing.

use futures::future::BoxFuture;

use super::failed;
use crate::error::Result;

/// A transaction that its owner may keep, move and hand on.
pub type OwnedTransaction<D> = sqlx::Transaction<'static, D>;

/// A database in which a message and its effects can commit together.
///
/// Implemented for the databases whose feature is enabled; it is not for implementing elsewhere.
pub trait Database: sqlx::Database + sealed::Sealed {
    /// Runs a statement without parameters or results.
    #[doc(hidden)]
    fn run<'a>(
        transaction: &'a mut OwnedTransaction<Self>,
        sql: &'static str,
    ) -> BoxFuture<'a, Result<()>>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! database {
    ($feature:literal, $database:ty) => {
        #[cfg(feature = $feature)]
        impl sealed::Sealed for $database {}

        #[cfg(feature = $feature)]
        impl Database for $database {
            fn run<'a>(
                transaction: &'a mut OwnedTransaction<Self>,
                sql: &'static str,
            ) -> BoxFuture<'a, Result<()>> {
                Box::pin(async move {
                    let done = sqlx::raw_sql(sql).execute(&mut **transaction).await;
                    done.map(drop).map_err(failed("run a statement of its own"))
                })
            }
        }
    };
}

database!("postgres", sqlx::Postgres);
database!("sqlite", sqlx::Sqlite);
database!("mysql", sqlx::MySql);

/// Commits; dropping the future rolls back, unless the database had committed already.
pub(crate) async fn commit<D: Database>(transaction: OwnedTransaction<D>) -> Result<()> {
    transaction.commit().await.map_err(failed("commit"))
}
