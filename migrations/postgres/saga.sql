-- acemq saga, version 1 (PostgreSQL). Times are milliseconds since the epoch.
-- next_at is the time from which a run may be claimed: when it is due, or when its lease ends. It is
-- null once the run has ended.
CREATE TABLE IF NOT EXISTS {prefix}saga (
    id          text   NOT NULL PRIMARY KEY,
    saga        text   NOT NULL,
    version     bigint NOT NULL,
    run_key     text   NOT NULL,
    status      text   NOT NULL,
    state       text   NOT NULL,
    trace       text,
    next_at     bigint,
    lease_token text,
    waits_for   text,
    waits_until bigint,
    problem     text,
    note        text,
    created_at  bigint NOT NULL,
    ended_at    bigint,
    UNIQUE (saga, run_key)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_analyze_scale_factor = 0.02
);
-- What a claim walks.
CREATE INDEX IF NOT EXISTS {prefix}saga_due ON {prefix}saga (saga, version, next_at)
    WHERE next_at IS NOT NULL;
-- What a purge, and the list of unresolved runs, walk.
CREATE INDEX IF NOT EXISTS {prefix}saga_ended ON {prefix}saga (saga, status, ended_at)
    WHERE ended_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS {prefix}saga_journal (
    run_id  text   NOT NULL,
    seq     bigint NOT NULL,
    kind    text   NOT NULL,
    step    text   NOT NULL,
    attempt bigint NOT NULL,
    state   text,
    detail  text,
    at      bigint NOT NULL,
    PRIMARY KEY (run_id, seq)
);
CREATE TABLE IF NOT EXISTS {prefix}saga_signals (
    run_id  text   NOT NULL,
    name    text   NOT NULL,
    payload text   NOT NULL,
    at      bigint NOT NULL,
    PRIMARY KEY (run_id, name)
);
