-- acemq outbox, version 1 (SQLite). Times are milliseconds since the epoch.
CREATE TABLE IF NOT EXISTS {prefix}outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT    NOT NULL,
    exchange     TEXT    NOT NULL,
    routing_key  TEXT    NOT NULL,
    payload      BLOB    NOT NULL,
    content_type TEXT    NOT NULL,
    headers      TEXT    NOT NULL,
    ordering_key TEXT,
    unique_key   TEXT,
    created_at   INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    attempts     INTEGER NOT NULL DEFAULT 0,
    last_error   TEXT,
    lease_token  TEXT,
    lease_until  INTEGER,
    published_at INTEGER,
    retired_at   INTEGER
);
-- What a claim walks: rows without an ordering key that wait, by the time from which they may go
-- out.
CREATE INDEX IF NOT EXISTS {prefix}outbox_pending ON {prefix}outbox (available_at, seq)
    WHERE published_at IS NULL AND retired_at IS NULL AND ordering_key IS NULL;
-- What a claim steps through for the others: from key to key, and to the first unfinished row of
-- each, however many rows wait behind it.
CREATE INDEX IF NOT EXISTS {prefix}outbox_ordered ON {prefix}outbox (ordering_key, seq)
    WHERE published_at IS NULL AND ordering_key IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS {prefix}outbox_unique ON {prefix}outbox (unique_key)
    WHERE unique_key IS NOT NULL;
-- What a purge walks.
CREATE INDEX IF NOT EXISTS {prefix}outbox_published ON {prefix}outbox (published_at)
    WHERE published_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS {prefix}outbox_retired ON {prefix}outbox (seq)
    WHERE retired_at IS NOT NULL;
