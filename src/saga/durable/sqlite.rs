//! The journal of sagas in SQLite.

use std::{sync::Arc, time::Duration};

use sqlx::{Error as DbError, Row, Sqlite as Db, SqlitePool as Pool};
use uuid::Uuid;

use super::{
    contract::{contract, due, narrow, parse_id, parse_trace, trace_text, unknown_word},
    entry::{EntryKind, JournalEntry, JournaledRun, RunStatus},
    journal::{
        NewRun, RunClaim, RunFilter, RunLease, RunNext, SagaJournal, Settlement, StartedRun, commit,
    },
    shared::{shared_methods, tables},
    statements::{SQLITE as DIALECT, Statements},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, OwnedTransaction, Prefix, failed, run_to_end, sql_millis,
        sqlite as database,
    },
};

const MIGRATION: Migration =
    Migration { pattern: "saga", versions: &[include_str!("../../../migrations/sqlite/saga.sql")] };

/// A journal of sagas in SQLite tables.
///
/// Cheap to clone. Time is the database's: the application's clock may be wrong.
#[derive(Debug, Clone)]
pub struct SqliteSagaJournal {
    pool: Pool,
    prefix: Prefix,
    statements: Arc<Statements>,
}

tables!("text", "text", "integer");
shared_methods!(SqliteSagaJournal);
contract!(SqliteSagaJournal);
