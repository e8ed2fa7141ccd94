//! How the SQL journals keep the contract, which reads the same for each of them.

use uuid::Uuid;

use super::journal::WaitUntil;
use crate::{
    error::{BoxError, Error, Result},
    store::{failed, sql_millis},
    telemetry::TraceContext,
};

/// The id that a row has.
pub(super) fn parse_id(text: &str) -> Result<Uuid> {
    Uuid::parse_str(text).map_err(failed("read the id of a run"))
}

/// A stored word that this version does not know.
pub(super) fn unknown_word(word: &str) -> Error {
    let source = BoxError::from(format!("`{word}` is no word of this version"));
    Error::Store { action: "read a run", source }
}

/// A trace context in one column: its two headers, with a space between them.
pub(super) fn trace_text(trace: &TraceContext) -> String {
    format!("{} {}", trace.traceparent(), trace.tracestate().unwrap_or_default())
}

pub(super) fn parse_trace(text: &str) -> Option<TraceContext> {
    let (parent, state) = text.split_once(' ')?;
    TraceContext::parse(parent, Some(state).filter(|state| !state.is_empty()))
}

pub(super) fn narrow(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The time from which a run is due, as two numbers: one to add, and how often now is added to it.
pub(super) fn due(until: WaitUntil) -> (i64, i64) {
    match until {
        WaitUntil::At(time) => (time, 0),
        WaitUntil::After(delay) => (sql_millis(delay), 1),
    }
}

/// Implements the contract for one journal.
macro_rules! contract {
    ($journal:ident) => {
        impl SagaJournal for $journal {
            type Database = Db;

            async fn begin(&self) -> Result<Tx> {
                database::begin(&self.pool).await
            }

            async fn create(&self, tx: &mut Tx, run: &NewRun) -> Result<StartedRun> {
                let (token, lease) = run.lease.unzip();
                let created = database::query(&self.statements.create)
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
                if DIALECT.tells_new && created.rows_affected() > 0 {
                    return Ok(StartedRun { id: run.id, is_new: true });
                }
                let row = database::query(&self.statements.created)
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
                    let any = database::query(&self.statements.any_due)
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
                        database::query(&statements.keep)
                            .bind(sql_millis(*lease))
                            .bind(status.as_str())
                    }
                    RunNext::Wait { until, signal } => {
                        let (base, now) = due(*until);
                        database::query(&statements.wait)
                            .bind(base)
                            .bind(now)
                            .bind(base)
                            .bind(now)
                            .bind(signal.clone())
                    }
                    RunNext::GiveBack { delay, problem } => database::query(&statements.give_back)
                        .bind(sql_millis(*delay))
                        .bind(problem.clone()),
                    RunNext::End(status) => database::query(&statements.end).bind(status.as_str()),
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
                    database::query(&statements.entry)
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
                let change = database::query(&self.statements.renew)
                    .bind(sql_millis(length))
                    .bind(lease.run.to_string())
                    .bind(lease.token.to_string());
                Ok(database::execute(&self.pool, change, "renew the lease of a run").await? > 0)
            }

            async fn load(&self, id: Uuid) -> Result<Option<JournaledRun>> {
                let row = database::query(&self.statements.run)
                    .bind(id.to_string())
                    .fetch_optional(&self.pool)
                    .await
                    .map_err(failed("read a run"))?;
                let Some(row) = row else { return Ok(None) };
                let rows = database::query(&self.statements.entries)
                    .bind(id.to_string())
                    .fetch_all(&self.pool)
                    .await
                    .map_err(failed("read a run"))?;
                let read = || -> Result<_, DbError> {
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
                    let read = || -> Result<_, DbError> {
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
                    RunFilter::Key(key) => database::query(&self.statements.by_key)
                        .bind(saga.to_owned())
                        .bind(key.to_owned()),
                    RunFilter::Ended(status) => database::query(&self.statements.ended)
                        .bind(saga.to_owned())
                        .bind(status.as_str())
                        .bind(i64::from(limit)),
                };
                let rows = query.fetch_all(&self.pool).await.map_err(failed("find runs"))?;
                rows.iter()
                    .map(|row| {
                        let id: String = row.try_get(0).map_err(failed("find runs"))?;
                        parse_id(&id)
                    })
                    .collect()
            }

            async fn count(&self, saga: &str, status: RunStatus) -> Result<u64> {
                let row = database::query(&self.statements.count)
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
                let there = database::query(&self.statements.wake)
                    .bind(name.to_owned())
                    .bind(id.to_string())
                    .execute(&mut **tx)
                    .await
                    .map_err(failed("signal a run"))?;
                if there.rows_affected() == 0 {
                    return Ok(false);
                }
                let kept = database::query(&self.statements.signal)
                    .bind(id.to_string())
                    .bind(name.to_owned())
                    .bind(payload.to_owned())
                    .execute(&mut **tx)
                    .await
                    .map_err(failed("signal a run"))?;
                Ok(kept.rows_affected() > 0)
            }

            async fn signalled(&self, tx: &mut Tx, id: Uuid, name: &str) -> Result<Option<String>> {
                let row = database::query(&self.statements.signalled)
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
                let rows = database::query(&self.statements.other_versions)
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
    };
}
pub(super) use contract;
