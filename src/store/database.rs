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
    /// Runs at the start of a unit of work.
    #[doc(hidden)]
    const BEGUN: Option<&'static str>;

    /// Fails if the unit of work is no longer what the database would commit.
    ///
    /// After a statement that failed, PostgreSQL answers a commit with a rollback, and calls it a
    /// success; MySQL has rolled back all of it after a deadlock. A handler that swallows the error
    /// and commits must not have its message acknowledged.
    #[doc(hidden)]
    const INTACT: Option<&'static str>;

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
    ($feature:literal, $database:ty, $begun:expr, $intact:expr) => {
        #[cfg(feature = $feature)]
        impl sealed::Sealed for $database {}

        #[cfg(feature = $feature)]
        impl Database for $database {
            const BEGUN: Option<&'static str> = $begun;
            const INTACT: Option<&'static str> = $intact;

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

database!("postgres", sqlx::Postgres, None, Some("SELECT 1"));
// A transaction that SQLite has rolled back by itself refuses the commit.
database!("sqlite", sqlx::Sqlite, None, None);
database!("mysql", sqlx::MySql, Some("SAVEPOINT acemq_unit"), Some("RELEASE SAVEPOINT acemq_unit"));

/// Prepares a transaction that has just begun.
pub(crate) async fn begun<D: Database>(transaction: &mut OwnedTransaction<D>) -> Result<()> {
    match D::BEGUN {
        Some(sql) => D::run(transaction, sql).await,
        None => Ok(()),
    }
}

/// Commits; dropping the future rolls back, unless the database had committed already.
pub(crate) async fn commit<D: Database>(mut transaction: OwnedTransaction<D>) -> Result<()> {
    if let Some(sql) = D::INTACT {
        D::run(&mut transaction, sql).await?;
    }
    transaction.commit().await.map_err(failed("commit"))
}
