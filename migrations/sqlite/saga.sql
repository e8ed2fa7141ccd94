-- acemq saga, version 1 (SQLite). Times are milliseconds since the epoch.
-- next_at is the time from which a run may be claimed: when it is due, or when its lease ends. It is
-- null once the run has ended.
CREATE TABLE IF NOT EXISTS {prefix}saga (
    id          TEXT    NOT NULL PRIMARY KEY,
    saga        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    run_key     TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    trace       TEXT,
    next_at     INTEGER,
    lease_token TEXT,
    waits_for   TEXT,
    waits_until INTEGER,
    problem     TEXT,
    note        TEXT,
    created_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    UNIQUE (saga, run_key)
);
-- What a claim walks.
CREATE INDEX IF NOT EXISTS {prefix}saga_due ON {prefix}saga (saga, version, next_at)
    WHERE next_at IS NOT NULL;
-- What a purge, and the list of unresolved runs, walk.
CREATE INDEX IF NOT EXISTS {prefix}saga_ended ON {prefix}saga (saga, status, ended_at)
    WHERE ended_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS {prefix}saga_journal (
    run_id  TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    step    TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    state   TEXT,
    detail  TEXT,
    at      INTEGER NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {prefix}saga_signals (
    run_id  TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    payload TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (run_id, name)
) WITHOUT ROWID;
