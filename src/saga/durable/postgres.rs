//! The journal of sagas in PostgreSQL.

use std::{sync::Arc, time::Duration};

use sqlx::{Error as DbError, PgPool as Pool, Postgres as Db, Row};
use uuid::Uuid;

use super::{
    contract::{contract, due, narrow, parse_id, parse_trace, trace_text, unknown_word},
    entry::{EntryKind, JournalEntry, JournaledRun, RunStatus},
    journal::{
        NewRun, RunClaim, RunFilter, RunLease, RunNext, SagaJournal, Settlement, StartedRun, commit,
    },
    shared::{shared_methods, tables},
    statements::{POSTGRES as DIALECT, Statements},
};
use crate::{
    error::Result,
    store::{
        Column, Migration, OwnedTransaction, Prefix, failed, postgres as database, run_to_end,
        sql_millis,
    },
};

const MIGRATION: Migration = Migration {
    pattern: "saga",
    versions: &[include_str!("../../../migrations/postgres/saga.sql")],
};

/// A journal of sagas in PostgreSQL tables.
///
/// Cheap to clone. Time is the database's: the application's clock may be wrong.
#[derive(Debug, Clone)]
pub struct PostgresSagaJournal {
    pool: Pool,
    prefix: Prefix,
    statements: Arc<Statements>,
}

tables!("text", "text|character varying", "bigint");
shared_methods!(PostgresSagaJournal);
contract!(PostgresSagaJournal);
