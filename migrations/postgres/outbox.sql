-- acemq outbox, version 1 (PostgreSQL).
-- fillfactor leaves room in each page, so that claims (which touch no indexed column) are HOT
-- updates. A relay turns every row over once; the default scale factor of 0.2 would let dead rows
-- pile up to a fifth of the table before a vacuum.
CREATE TABLE IF NOT EXISTS {prefix}outbox (
    seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           text        NOT NULL,
    exchange     text        NOT NULL,
    routing_key  text        NOT NULL,
    payload      bytea       NOT NULL,
    content_type text        NOT NULL,
    headers      text        NOT NULL,
    ordering_key text        COLLATE "C",
    unique_key   text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    available_at timestamptz NOT NULL DEFAULT now(),
    attempts     integer     NOT NULL DEFAULT 0,
    last_error   text,
    lease_token  uuid,
    lease_until  timestamptz,
    published_at timestamptz,
    retired_at   timestamptz
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_analyze_scale_factor = 0.02
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
