//! The SQL of the saga tables: one text for all databases, with a few words that differ.

use std::sync::Arc;

use crate::store::Prefix;

/// The words in which the databases differ.
pub(super) struct Dialect {
    /// The present time in milliseconds since the epoch, the same throughout a statement.
    pub(super) now: &'static str,
    /// What lets an insert of a key that is there change nothing; `{same}` is a column.
    pub(super) or_nothing: &'static str,
    /// Whether such an insert tells by its count that the key was not there.
    pub(super) tells_new: bool,
    /// What begins and ends an insert that does tell. Its lock on the key may be a shared one: not
    /// for transactions that race for a key and then lock it, which would wait for each other.
    pub(super) insert_new: (&'static str, &'static str),
    /// What lets a claim pass over rows that another one is claiming.
    pub(super) skip_locked: &'static str,
    /// What makes a read see the row as it is, not as it was when the transaction began.
    pub(super) locking: &'static str,
    /// Turns a binary column into text.
    pub(super) text: fn(&str) -> String,
    /// Whether parameters are `$1`, `$2` and so on.
    pub(super) numbered: bool,
}

#[cfg(feature = "postgres")]
pub(super) const POSTGRES: Dialect = Dialect {
    now: "(extract(epoch FROM statement_timestamp()) * 1000)::bigint",
    or_nothing: "ON CONFLICT DO NOTHING",
    tells_new: true,
    insert_new: ("INSERT", "ON CONFLICT DO NOTHING"),
    skip_locked: "FOR UPDATE SKIP LOCKED",
    locking: "",
    text: str::to_owned,
    numbered: true,
};

#[cfg(feature = "sqlite")]
pub(super) const SQLITE: Dialect = Dialect {
    now: crate::store::sqlite::NOW,
    or_nothing: "ON CONFLICT DO NOTHING",
    tells_new: true,
    insert_new: ("INSERT", "ON CONFLICT DO NOTHING"),
    skip_locked: "",
    locking: "",
    text: str::to_owned,
    numbered: false,
};

#[cfg(feature = "mysql")]
pub(super) const MYSQL: Dialect = Dialect {
    now: crate::store::mysql::NOW,
    or_nothing: "ON DUPLICATE KEY UPDATE {same} = {same}",
    tells_new: false,
    insert_new: ("INSERT IGNORE", ""),
    skip_locked: "FOR UPDATE SKIP LOCKED",
    locking: "FOR UPDATE",
    text: |column| format!("convert({column} USING utf8mb4)"),
    numbered: false,
};

/// The statements of one journal.
#[derive(Debug)]
pub(super) struct Statements {
    /// id, saga, version, key, status, state, trace, milliseconds of a lease, token.
    pub(super) create: Arc<str>,
    /// saga, key; sees a run that was created after the transaction began.
    pub(super) created: Arc<str>,
    /// saga, key.
    pub(super) by_key: Arc<str>,
    /// saga, version; tells whether a claim would find anything.
    pub(super) any_due: Arc<str>,
    /// saga, version, limit.
    pub(super) due: Arc<str>,
    /// saga, version, id.
    pub(super) due_one: Arc<str>,
    /// token, milliseconds of a lease, id.
    pub(super) lease: Arc<str>,
    /// milliseconds of a lease, status, id, token.
    pub(super) keep: Arc<str>,
    /// time and whether now is added to it, twice; signal, id, token.
    pub(super) wait: Arc<str>,
    /// milliseconds, problem, id, token.
    pub(super) give_back: Arc<str>,
    /// status, id, token.
    pub(super) end: Arc<str>,
    /// milliseconds of a lease, id, token.
    pub(super) renew: Arc<str>,
    /// Entries: run, seq, kind, step, attempt, state, detail.
    pub(super) entry: Arc<str>,
    /// id.
    pub(super) run: Arc<str>,
    /// run.
    pub(super) entries: Arc<str>,
    /// saga, status, limit.
    pub(super) ended: Arc<str>,
    /// saga, status.
    pub(super) count: Arc<str>,
    /// signal, id.
    pub(super) wake: Arc<str>,
    /// run, name, payload.
    pub(super) signal: Arc<str>,
    /// run, name.
    pub(super) signalled: Arc<str>,
    /// note, saga, id.
    pub(super) resolve: Arc<str>,
    /// saga, id.
    pub(super) reopen: Arc<str>,
    /// run, run.
    pub(super) reopened: Arc<str>,
    /// saga, version.
    pub(super) other_versions: Arc<str>,
    /// saga, milliseconds, limit.
    pub(super) purgeable: Arc<str>,
    /// run; the journal, the signals and the runs, in this order.
    pub(super) delete: [Arc<str>; 3],
}

impl Statements {
    #[expect(clippy::too_many_lines, reason = "a list of statements")]
    pub(super) fn new(dialect: &Dialect, prefix: &Prefix) -> Self {
        let fill = |sql: &str| fill(dialect, prefix, sql);
        Self {
            create: fill(
                "INSERT INTO {runs}
    (id, saga, version, run_key, status, state, trace, next_at, lease_token, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, {now} + ?, ?, {now})
{or_nothing:id}",
            ),
            created: fill("SELECT id FROM {runs} WHERE saga = ? AND run_key = ? {locking}"),
            by_key: fill("SELECT id FROM {runs} WHERE saga = ? AND run_key = ?"),
            any_due: fill(
                "SELECT id FROM {runs} WHERE saga = ? AND version = ? AND next_at <= {now} LIMIT 1",
            ),
            due: fill(
                "SELECT id FROM {runs} WHERE saga = ? AND version = ? AND next_at <= {now}
ORDER BY next_at LIMIT ? {skip_locked}",
            ),
            due_one: fill(
                "SELECT id FROM {runs} WHERE saga = ? AND version = ? AND id = ? AND next_at <= {now}
{skip_locked}",
            ),
            lease: fill("UPDATE {runs} SET lease_token = ?, next_at = {now} + ? WHERE id = ?"),
            keep: fill(
                "UPDATE {runs}
SET next_at = {now} + ?, status = ?, waits_for = NULL, waits_until = NULL, problem = NULL
WHERE id = ? AND lease_token = ?",
            ),
            wait: fill(
                "UPDATE {runs} SET next_at = ? + ? * {now}, waits_until = ? + ? * {now},
    waits_for = ?, lease_token = NULL
WHERE id = ? AND lease_token = ?",
            ),
            give_back: fill(
                "UPDATE {runs} SET next_at = {now} + ?, problem = ?, lease_token = NULL
WHERE id = ? AND lease_token = ?",
            ),
            end: fill(
                "UPDATE {runs} SET status = ?, next_at = NULL, lease_token = NULL, waits_for = NULL,
    waits_until = NULL, problem = NULL, ended_at = {now}
WHERE id = ? AND lease_token = ?",
            ),
            renew: fill(
                "UPDATE {runs} SET next_at = {now} + ? WHERE id = ? AND lease_token = ?",
            ),
            entry: fill(
                "INSERT INTO {journal} (run_id, seq, kind, step, attempt, state, detail, at)
VALUES (?, ?, ?, ?, ?, ?, ?, {now})
{or_nothing:seq}",
            ),
            run: fill(
                "SELECT id, {text:saga} AS saga, version, {text:run_key} AS run_key, status, state,
    trace, lease_token, {text:waits_for} AS waits_for, waits_until, problem, note, created_at, ended_at,
    CASE WHEN waits_until <= {now} THEN 1 ELSE 0 END AS wait_is_over
FROM {runs} WHERE id = ?",
            ),
            entries: fill(
                "SELECT seq, kind, step, attempt, state, detail FROM {journal}
WHERE run_id = ? ORDER BY seq",
            ),
            ended: fill(
                "SELECT id FROM {runs} WHERE saga = ? AND status = ? AND ended_at IS NOT NULL
ORDER BY ended_at LIMIT ?",
            ),
            count: fill(
                "SELECT count(*) FROM {runs} WHERE saga = ? AND status = ? AND ended_at IS NOT NULL",
            ),
            // Also locks the row of a run that does not wait yet: whoever is about to let it wait
            // comes before this transaction, and is woken, or after it, and sees the answer.
            wake: fill(
                "UPDATE {runs} SET next_at = CASE
    WHEN lease_token IS NULL AND waits_for = ? THEN {now} ELSE next_at END
WHERE id = ? AND next_at IS NOT NULL",
            ),
            signal: fill(
                "{insert_new} INTO {signals} (run_id, name, payload, at) VALUES (?, ?, ?, {now})
{or_ignore}",
            ),
            signalled: fill("SELECT payload FROM {signals} WHERE run_id = ? AND name = ?"),
            resolve: fill(
                "UPDATE {runs} SET status = 'RESOLVED', note = ?
WHERE saga = ? AND id = ? AND status = 'UNRESOLVED'",
            ),
            reopen: fill(
                "UPDATE {runs} SET status = 'COMPENSATING', next_at = {now}, ended_at = NULL
WHERE saga = ? AND id = ? AND status = 'UNRESOLVED'",
            ),
            reopened: fill(
                "INSERT INTO {journal} (run_id, seq, kind, step, attempt, at)
SELECT run_id, max(seq) + 1, 'REOPENED', '', 0, {now} FROM {journal}
WHERE run_id = ? GROUP BY run_id",
            ),
            other_versions: fill(
                "SELECT DISTINCT version FROM {runs}
WHERE saga = ? AND version <> ? AND next_at <= {now} ORDER BY version",
            ),
            purgeable: fill(
                "SELECT id FROM {runs}
WHERE saga = ? AND status IN ('COMPLETE', 'COMPENSATED', 'RESOLVED') AND ended_at <= {now} - ?
ORDER BY ended_at LIMIT ? {skip_locked}",
            ),
            delete: [
                fill("DELETE FROM {journal} WHERE run_id = ?"),
                fill("DELETE FROM {signals} WHERE run_id = ?"),
                fill("DELETE FROM {runs} WHERE id = ?"),
            ],
        }
    }
}

fn fill(dialect: &Dialect, prefix: &Prefix, sql: &str) -> Arc<str> {
    let mut text = sql
        .replace("{runs}", &prefix.table("saga"))
        .replace("{journal}", &prefix.table("saga_journal"))
        .replace("{signals}", &prefix.table("saga_signals"))
        .replace("{now}", dialect.now)
        .replace("{skip_locked}", dialect.skip_locked)
        .replace("{locking}", dialect.locking)
        .replace("{insert_new}", dialect.insert_new.0)
        .replace("{or_ignore}", dialect.insert_new.1);
    for column in ["id", "seq"] {
        let or_nothing = dialect.or_nothing.replace("{same}", column);
        text = text.replace(&format!("{{or_nothing:{column}}}"), &or_nothing);
    }
    for column in ["saga", "run_key", "waits_for"] {
        text = text.replace(&format!("{{text:{column}}}"), &(dialect.text)(column));
    }
    if dialect.numbered { numbered(&text).into() } else { text.into() }
}

/// Turns each `?` into `$1`, `$2` and so on.
fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.enumerate().fold(first, |text, (index, part)| format!("{text}${}{part}", index + 1))
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn parameters_are_numbered_in_their_order() {
        assert_eq!(numbered("a = ? AND b = ? + 1"), "a = $1 AND b = $2 + 1");
        assert_eq!(numbered("no parameter"), "no parameter");
    }
}
