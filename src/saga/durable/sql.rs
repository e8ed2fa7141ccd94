//! Journals in PostgreSQL, MySQL or MariaDB, and SQLite.

use std::{sync::Arc, time::Duration};

use sqlx::Row;
use uuid::Uuid;

use super::{
    journal::{
        EntryKind, JournalEntry, JournaledRun, NewRun, RunClaim, RunFilter, RunLease, RunNext,
        RunStatus, SagaJournal, Settlement, StartedRun, WaitUntil, commit,
    },
    statements::{Dialect, Statements},
};
use crate::{
    error::{BoxError, Error, Result},
    store::{Column, Migration, OwnedTransaction, Prefix, failed, run_to_end, sql_millis},
    telemetry::TraceContext,
};

/// The id that a row has.
fn parse_id(text: &str) -> Result<Uuid> {
    Uuid::parse_str(text).map_err(failed("read the id of a run"))
}

/// A stored word that this version does not know.
fn unknown_word(word: &str) -> Error {
    let source = BoxError::from(format!("`{word}` is no word of this version"));
    Error::Store { action: "read a run", source }
}

/// A trace context in one column: its two headers, with a space between them.
fn trace_text(trace: &TraceContext) -> String {
    format!("{} {}", trace.traceparent(), trace.tracestate().unwrap_or_default())
}

fn parse_trace(text: &str) -> Option<TraceContext> {
    let (parent, state) = text.split_once(' ')?;
    TraceContext::parse(parent, Some(state).filter(|state| !state.is_empty()))
}

fn narrow(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The time from which a run is due, as two numbers: one to add, and how often now is added to it.
fn due(until: WaitUntil) -> (i64, i64) {
    match until {
        WaitUntil::At(time) => (time, 0),
        WaitUntil::After(delay) => (sql_millis(delay), 1),
    }
}

macro_rules! journal {
    ($feature:literal, $module:ident, $journal:ident, $pool:ident, $database:ident, $dialect:ident,
     $migration:literal, [$text:literal, $short:literal, $number:literal], $name:literal) => {
        #[cfg(feature = $feature)]
        mod $module {
            use sqlx::$pool;

            use super::*;
            use crate::{saga::durable::statements::$dialect, store::$module};

            const MIGRATION: Migration =
                Migration { pattern: "saga", versions: &[include_str!($migration)] };
            const RUNS: &[Column] = &[
                ("id", $short),
                ("saga", $short),
                ("version", $number),
                ("run_key", $short),
                ("status", $short),
                ("state", $text),
                ("trace", $text),
                ("next_at", $number),
                ("lease_token", $short),
                ("waits_for", $short),
                ("waits_until", $number),
                ("problem", $text),
                ("note", $text),
                ("created_at", $number),
                ("ended_at", $number),
            ];
            const JOURNAL: &[Column] = &[
                ("run_id", $short),
                ("seq", $number),
                ("kind", $short),
                ("step", $short),
                ("attempt", $number),
                ("state", $text),
                ("detail", $text),
                ("at", $number),
            ];
            const SIGNALS: &[Column] =
                &[("run_id", $short), ("name", $short), ("payload", $text), ("at", $number)];
            const DIALECT: &Dialect = &$dialect;

            #[doc = concat!("A journal of sagas in ", $name, " tables.")]
            ///
            /// Cheap to clone. Time is the database's: the application's clock may be wrong.
            #[derive(Debug, Clone)]
            pub struct $journal {
                pool: $pool,
                prefix: Prefix,
                statements: Arc<Statements>,
            }

            type Tx = OwnedTransaction<sqlx::$database>;

            impl $journal {
                /// Creates a journal over the tables `acemq_saga`, `acemq_saga_journal` and
                /// `acemq_saga_signals`. Nothing is read or written yet.
                #[must_use]
                pub fn new(pool: $pool) -> Self {
                    Self::assemble(pool, Prefix::default())
                }

                fn assemble(pool: $pool, prefix: Prefix) -> Self {
                    let statements = Arc::new(Statements::new(DIALECT, &prefix));
                    Self { pool, prefix, statements }
                }

                /// Sets the prefix of the tables' names. Default: `acemq_`.
                ///
                /// # Errors
                ///
                /// [`Error::InvalidOption`] unless it matches `[A-Za-z_][A-Za-z0-9_]{0,40}`.
                pub fn table_prefix(self, prefix: &str) -> Result<Self> {
                    Ok(Self::assemble(self.pool, Prefix::parse(prefix)?))
                }

                /// Creates or updates the tables; does nothing where that has happened.
                ///
                /// Several processes may call it at once. The version is remembered in
                /// `{prefix}schema`; an application's own migration table is not touched.
                /// Dropping the future does not stop it.
                ///
                /// # Errors
                ///
                /// [`Error::Store`] if the database fails or its user may not create tables.
                pub async fn migrate(&self) -> Result<()> {
                    $module::migrate(&self.pool, &self.prefix, &MIGRATION).await
                }

                /// Returns what [`migrate`](Self::migrate) does as one script, for teams that run
                /// their own migrations.
                #[must_use]
                pub fn migration_sql(&self) -> String {
                    $module::script(&self.prefix, &MIGRATION)
                }

                /// Compares the tables' columns with what this version needs.
                ///
                /// # Errors
                ///
                /// - [`Error::Schema`], which names the table and the column, if one is missing or
                ///   of another type.
                /// - [`Error::Store`] if the database fails.
                pub async fn check(&self) -> Result<()> {
                    for (table, columns) in
                        [("saga", RUNS), ("saga_journal", JOURNAL), ("saga_signals", SIGNALS)]
                    {
                        $module::check(&self.pool, &self.prefix.table(table), columns).await?;
                    }
                    Ok(())
                }

                async fn claim_due(&self, claim: &RunClaim) -> Result<Vec<RunLease>> {
                    let mut tx = self.begin().await?;
                    let due = match claim.only {
                        None => $module::query(&self.statements.due)
                            .bind(&claim.saga)
                            .bind(i64::from(claim.version))
                            .bind(i64::from(claim.limit)),
                        Some(id) => $module::query(&self.statements.due_one)
                            .bind(&claim.saga)
                            .bind(i64::from(claim.version))
                            .bind(id.to_string()),
                    };
                    let rows = due.fetch_all(&mut *tx).await.map_err(failed("claim runs"))?;
                    let mut leases = Vec::with_capacity(rows.len());
                    for row in rows {
                        let id: String = row.try_get(0).map_err(failed("claim runs"))?;
                        let token = Uuid::new_v4();
                        leases.push(RunLease { run: parse_id(&id)?, token });
                        $module::query(&self.statements.lease)
                            .bind(token.to_string())
                            .bind(sql_millis(claim.lease))
                            .bind(id)
                            .execute(&mut *tx)
                            .await
                            .map_err(failed("claim runs"))?;
                    }
                    commit(tx).await?;
                    Ok(leases)
                }

                async fn settle_run(
                    self,
                    saga: String,
                    id: Uuid,
                    note: Option<String>,
                ) -> Result<bool> {
                    let mut tx = self.begin().await?;
                    let change = match &note {
                        Some(note) => $module::query(&self.statements.resolve).bind(note.clone()),
                        None => $module::query(&self.statements.reopen),
                    };
                    let changed = change
                        .bind(saga)
                        .bind(id.to_string())
                        .execute(&mut *tx)
                        .await
                        .map_err(failed("settle a run"))?;
                    if changed.rows_affected() == 0 {
                        return Ok(false);
                    }
                    if note.is_none() {
                        $module::query(&self.statements.reopened)
                            .bind(id.to_string())
                            .execute(&mut *tx)
                            .await
                            .map_err(failed("settle a run"))?;
                    }
                    commit(tx).await?;
                    Ok(true)
                }

                async fn purge_runs(
                    self,
                    saga: String,
                    older: Duration,
                    limit: u32,
                ) -> Result<u64> {
                    let mut tx = self.begin().await?;
                    let rows = $module::query(&self.statements.purgeable)
                        .bind(saga)
                        .bind(sql_millis(older))
                        .bind(i64::from(limit))
                        .fetch_all(&mut *tx)
                        .await
                        .map_err(failed("purge runs"))?;
                    let mut purged = 0;
                    for row in rows {
                        let id: String = row.try_get(0).map_err(failed("purge runs"))?;
                        for sql in &self.statements.delete {
                            $module::query(sql)
                                .bind(id.clone())
                                .execute(&mut *tx)
                                .await
                                .map_err(failed("purge runs"))?;
                        }
                        purged += 1;
                    }
                    commit(tx).await?;
                    Ok(purged)
                }

                async fn ids(
                    &self,
                    query: sqlx::query::Query<
                        'static,
                        sqlx::$database,
                        <sqlx::$database as sqlx::Database>::Arguments,
                    >,
                ) -> Result<Vec<Uuid>> {
                    let rows = query.fetch_all(&self.pool).await.map_err(failed("find runs"))?;
                    rows.iter()
                        .map(|row| {
                            let id: String = row.try_get(0).map_err(failed("find runs"))?;
                            parse_id(&id)
                        })
                        .collect()
                }
            }

            impl SagaJournal for $journal {
                type Database = sqlx::$database;

                async fn begin(&self) -> Result<Tx> {
                    $module::begin(&self.pool).await
                }

                async fn create(&self, tx: &mut Tx, run: &NewRun) -> Result<StartedRun> {
                    let (token, lease) = run.lease.unzip();
                    $module::query(&self.statements.create)
                        .bind(run.id.to_string())
                        .bind(run.saga.clone())
                        .bind(i64::from(run.version))
                        .bind(run.key.clone())
                        .bind(RunStatus::Running.as_str())
                        .bind(run.state.clone())
                        .bind(run.trace.as_ref().map(trace_text))
                        .bind(lease.map_or(0, sql_millis))
                        .bind(token.map(|token| token.to_string()))
                        .execute(&mut **tx)
                        .await
                        .map_err(failed("start a run"))?;
                    let row = $module::query(&self.statements.by_key)
                        .bind(run.saga.clone())
                        .bind(run.key.clone())
                        .fetch_one(&mut **tx)
                        .await
                        .map_err(failed("start a run"))?;
                    let id: String = row.try_get(0).map_err(failed("start a run"))?;
                    let id = parse_id(&id)?;
                    Ok(StartedRun { id, is_new: id == run.id })
                }

                async fn claim(&self, claim: &RunClaim) -> Result<Vec<RunLease>> {
                    // Without a transaction: an idle poll takes no lock.
                    if claim.only.is_none() {
                        let any = $module::query(&self.statements.any_due)
                            .bind(claim.saga.clone())
                            .bind(i64::from(claim.version))
                            .fetch_optional(&self.pool)
                            .await
                            .map_err(failed("look for runs"))?;
                        if any.is_none() {
                            return Ok(Vec::new());
                        }
                    }
                    let (journal, claim) = (self.clone(), claim.clone());
                    run_to_end("claim runs", async move { journal.claim_due(&claim).await }).await
                }

                async fn record(
                    &self,
                    tx: &mut Tx,
                    lease: &RunLease,
                    entries: &[JournalEntry],
                    next: &RunNext,
                ) -> Result<bool> {
                    let statements = &self.statements;
                    let change = match next {
                        RunNext::Keep { lease, compensating } => {
                            let status = if *compensating {
                                RunStatus::Compensating
                            } else {
                                RunStatus::Running
                            };
                            $module::query(&statements.keep)
                                .bind(sql_millis(*lease))
                                .bind(status.as_str())
                        }
                        RunNext::Wait { until, signal } => {
                            let (base, now) = due(*until);
                            $module::query(&statements.wait)
                                .bind(base)
                                .bind(now)
                                .bind(base)
                                .bind(now)
                                .bind(signal.clone())
                        }
                        RunNext::GiveBack { delay, problem } => {
                            $module::query(&statements.give_back)
                                .bind(sql_millis(*delay))
                                .bind(problem.clone())
                        }
                        RunNext::End(status) => {
                            $module::query(&statements.end).bind(status.as_str())
                        }
                    };
                    let changed = change
                        .bind(lease.run.to_string())
                        .bind(lease.token.to_string())
                        .execute(&mut **tx)
                        .await
                        .map_err(failed("record a run"))?;
                    if changed.rows_affected() == 0 {
                        return Ok(false);
                    }
                    for entry in entries {
                        $module::query(&statements.entry)
                            .bind(lease.run.to_string())
                            .bind(entry.seq)
                            .bind(entry.kind.as_str())
                            .bind(entry.step.clone())
                            .bind(i64::from(entry.attempt))
                            .bind(entry.state.clone())
                            .bind(entry.detail.clone())
                            .execute(&mut **tx)
                            .await
                            .map_err(failed("record a step"))?;
                    }
                    Ok(true)
                }

                async fn renew(&self, lease: &RunLease, length: Duration) -> Result<bool> {
                    let change = $module::query(&self.statements.renew)
                        .bind(sql_millis(length))
                        .bind(lease.run.to_string())
                        .bind(lease.token.to_string());
                    Ok($module::execute(&self.pool, change, "renew the lease of a run").await? > 0)
                }

                async fn load(&self, id: Uuid) -> Result<Option<JournaledRun>> {
                    let row = $module::query(&self.statements.run)
                        .bind(id.to_string())
                        .fetch_optional(&self.pool)
                        .await
                        .map_err(failed("read a run"))?;
                    let Some(row) = row else { return Ok(None) };
                    let rows = $module::query(&self.statements.entries)
                        .bind(id.to_string())
                        .fetch_all(&self.pool)
                        .await
                        .map_err(failed("read a run"))?;
                    let read = || -> sqlx::Result<_> {
                        let version: i64 = row.try_get("version")?;
                        let status: String = row.try_get("status")?;
                        let leased: Option<String> = row.try_get("lease_token")?;
                        let trace: Option<String> = row.try_get("trace")?;
                        // MySQL and SQLite give the outcome of a CASE in different widths.
                        let over: i64 = row
                            .try_get::<i64, _>("wait_is_over")
                            .or_else(|_| row.try_get::<i32, _>("wait_is_over").map(i64::from))?;
                        let run = JournaledRun {
                            id,
                            saga: row.try_get("saga")?,
                            version: narrow(version),
                            key: row.try_get("run_key")?,
                            status: RunStatus::Running,
                            state: row.try_get("state")?,
                            trace: trace.as_deref().and_then(parse_trace),
                            leased: leased.is_some(),
                            waits_for: row.try_get("waits_for")?,
                            waits_until: row.try_get("waits_until")?,
                            wait_is_over: over == 1,
                            problem: row.try_get("problem")?,
                            note: row.try_get("note")?,
                            created_at: row.try_get("created_at")?,
                            ended_at: row.try_get("ended_at")?,
                            entries: Vec::with_capacity(rows.len()),
                        };
                        Ok((run, status))
                    };
                    let (mut run, status) = read().map_err(failed("read a run"))?;
                    run.status = RunStatus::parse(&status).ok_or_else(|| unknown_word(&status))?;
                    for row in &rows {
                        let kind: String = row.try_get("kind").map_err(failed("read a run"))?;
                        let kind = EntryKind::parse(&kind).ok_or_else(|| unknown_word(&kind))?;
                        let read = || -> sqlx::Result<_> {
                            let attempt: i64 = row.try_get("attempt")?;
                            Ok(JournalEntry {
                                seq: row.try_get("seq")?,
                                kind,
                                step: row.try_get("step")?,
                                attempt: narrow(attempt),
                                state: row.try_get("state")?,
                                detail: row.try_get("detail")?,
                            })
                        };
                        run.entries.push(read().map_err(failed("read a run"))?);
                    }
                    Ok(Some(run))
                }

                async fn find(
                    &self,
                    saga: &str,
                    which: RunFilter<'_>,
                    limit: u32,
                ) -> Result<Vec<Uuid>> {
                    let query = match which {
                        RunFilter::Key(key) => $module::query(&self.statements.by_key)
                            .bind(saga.to_owned())
                            .bind(key.to_owned()),
                        RunFilter::Ended(status) => $module::query(&self.statements.ended)
                            .bind(saga.to_owned())
                            .bind(status.as_str())
                            .bind(i64::from(limit)),
                    };
                    self.ids(query).await
                }

                async fn count(&self, saga: &str, status: RunStatus) -> Result<u64> {
                    let row = $module::query(&self.statements.count)
                        .bind(saga.to_owned())
                        .bind(status.as_str())
                        .fetch_one(&self.pool)
                        .await
                        .map_err(failed("count runs"))?;
                    let count: i64 = row.try_get(0).map_err(failed("count runs"))?;
                    Ok(u64::try_from(count).unwrap_or(0))
                }

                async fn signal(
                    &self,
                    tx: &mut Tx,
                    id: Uuid,
                    name: &str,
                    payload: &str,
                ) -> Result<bool> {
                    let there = $module::query(&self.statements.wake)
                        .bind(name.to_owned())
                        .bind(id.to_string())
                        .execute(&mut **tx)
                        .await
                        .map_err(failed("signal a run"))?;
                    if there.rows_affected() == 0 {
                        return Ok(false);
                    }
                    let before = self.signalled(tx, id, name).await?;
                    if before.is_some() {
                        return Ok(false);
                    }
                    $module::query(&self.statements.signal)
                        .bind(id.to_string())
                        .bind(name.to_owned())
                        .bind(payload.to_owned())
                        .execute(&mut **tx)
                        .await
                        .map_err(failed("signal a run"))?;
                    Ok(true)
                }

                async fn signalled(
                    &self,
                    tx: &mut Tx,
                    id: Uuid,
                    name: &str,
                ) -> Result<Option<String>> {
                    let row = $module::query(&self.statements.signalled)
                        .bind(id.to_string())
                        .bind(name.to_owned())
                        .fetch_optional(&mut **tx)
                        .await
                        .map_err(failed("read an answer"))?;
                    row.map(|row| row.try_get(0).map_err(failed("read an answer"))).transpose()
                }

                async fn settle(&self, saga: &str, id: Uuid, how: Settlement<'_>) -> Result<bool> {
                    let note = match how {
                        Settlement::Resolve { note } => Some(note.to_owned()),
                        Settlement::Retry => None,
                    };
                    let work = self.clone().settle_run(saga.to_owned(), id, note);
                    run_to_end("settle a run", work).await
                }

                async fn other_versions(&self, saga: &str, version: u32) -> Result<Vec<u32>> {
                    let rows = $module::query(&self.statements.other_versions)
                        .bind(saga.to_owned())
                        .bind(i64::from(version))
                        .fetch_all(&self.pool)
                        .await
                        .map_err(failed("look for other versions"))?;
                    rows.iter()
                        .map(|row| row.try_get(0).map(narrow).map_err(failed("read a version")))
                        .collect()
                }

                async fn purge(&self, saga: &str, older_than: Duration, limit: u32) -> Result<u64> {
                    let work = self.clone().purge_runs(saga.to_owned(), older_than, limit);
                    run_to_end("purge runs", work).await
                }

                async fn check(&self) -> Result<()> {
                    Self::check(self).await
                }
            }
        }

        #[cfg(feature = $feature)]
        pub use $module::$journal;
    };
}

journal!(
    "postgres",
    postgres,
    PostgresSagaJournal,
    PgPool,
    Postgres,
    POSTGRES,
    "../../../migrations/postgres/saga.sql",
    ["text", "text|character varying", "bigint"],
    "PostgreSQL"
);
journal!(
    "sqlite",
    sqlite,
    SqliteSagaJournal,
    SqlitePool,
    Sqlite,
    SQLITE,
    "../../../migrations/sqlite/saga.sql",
    ["text", "text", "integer"],
    "SQLite"
);
journal!(
    "mysql",
    mysql,
    MySqlSagaJournal,
    MySqlPool,
    MySql,
    MYSQL,
    "../../../migrations/mysql/saga.sql",
    ["longtext|text", "varchar|varbinary", "bigint"],
    "MySQL or MariaDB"
);
