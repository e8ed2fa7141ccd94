-- acemq idempotency, version 1 (SQLite). Times are milliseconds since the epoch.
-- expires_at is the end of the lease while a row is CLAIMED and of the retention once CONFIRMED.
CREATE TABLE IF NOT EXISTS {prefix}idempotency (
    consumer    TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    claimed_by  TEXT,
    recorded_at INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;
-- What a purge walks.
CREATE INDEX IF NOT EXISTS {prefix}idempotency_expires ON {prefix}idempotency (expires_at);
