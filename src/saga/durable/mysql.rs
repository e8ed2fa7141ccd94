//! The journal of sagas in MySQL or MariaDB.

use std::{sync::Arc, time::Duration};

use sqlx::{Error as DbError, MySql as Db, MySqlPool as Pool, Row};
use uuid::Uuid;

use super::{
    contract::{contract, due, narrow, parse_id, parse_trace, trace_text, unknown_word},
    entry::{EntryKind, JournalEntry, JournaledRun, RunStatus},
    journal::{
        NewRun, RunClaim, RunFilter, RunLease, RunNext, SagaJournal, Settlement, StartedRun, commit,
    },
    shared::{shared_methods, tables},
    statements::{MYSQL as DIALECT, Statements},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, OwnedTransaction, Prefix, failed, mysql as database, run_to_end,
        sql_millis,
    },
};

const MIGRATION: Migration =
    Migration { pattern: "saga", versions: &[include_str!("../../../migrations/mysql/saga.sql")] };

/// A journal of sagas in MySQL or MariaDB tables.
///
/// Cheap to clone. Time is the database's: the application's clock may be wrong.
#[derive(Debug, Clone)]
pub struct MySqlSagaJournal {
    pool: Pool,
    prefix: Prefix,
    statements: Arc<Statements>,
}

tables!("longtext|text", "varchar|varbinary", "bigint");
shared_methods!(MySqlSagaJournal);
contract!(MySqlSagaJournal);
