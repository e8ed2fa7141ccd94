-- acemq idempotency, version 1 (PostgreSQL).
-- expires_at is the end of the lease while a row is CLAIMED and of the retention once CONFIRMED.
CREATE TABLE IF NOT EXISTS {prefix}idempotency (
    consumer    text        NOT NULL,
    message_id  text        NOT NULL,
    state       text        NOT NULL,
    claimed_by  uuid,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (consumer, message_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_analyze_scale_factor = 0.02
);
-- What a purge walks.
CREATE INDEX IF NOT EXISTS {prefix}idempotency_expires ON {prefix}idempotency (expires_at);
