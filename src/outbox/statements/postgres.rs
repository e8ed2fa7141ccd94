//! The outbox in PostgreSQL's words.

use super::Dialect;

pub(in crate::outbox) const POSTGRES: Dialect = Dialect {
    insert: "
INSERT INTO {outbox} (id, exchange, routing_key, content_type, payload, headers, ordering_key,
                      unique_key, available_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, {now}), {now})
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING",

    // The sort makes the sequence follow the order of the arrays.
    insert_many: "
INSERT INTO {outbox} (id, exchange, routing_key, content_type, payload, headers, ordering_key,
                      unique_key, available_at, created_at)
SELECT id, exchange, routing_key, content_type, payload, headers, ordering_key,
       unique_key, coalesce(available_at, {now}), {now}
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[],
            $8::text[], $9::timestamptz[]) WITH ORDINALITY
     AS r(id, exchange, routing_key, content_type, payload, headers, ordering_key,
          unique_key, available_at, position)
ORDER BY position
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING",

    // Neither a claim nor a mark waits for the disk: `lazily` lets its commit return before it is
    // flushed. A server that crashes right then has forgotten a claim, and the rows are claimed
    // again, or a mark, and they are published again with the same id.
    //
    // Steps from key to key in the index of ordering keys and stops when the batch is full, so that
    // a key with a long backlog costs one step. Where fewer keys than places are found, each gets
    // its share of the next rows of its key, up to the first that may not go out.
    //
    // A row that another claim took after this statement's snapshot is locked, or fails the
    // conditions when they are checked again on its newest version; `nth = place` then ends the
    // run, so that none has a gap. `due` never falls within a run, so that a limit cuts its tail.
    claim: "
WITH RECURSIVE lazily AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), keys (ordering_key, seq) AS (
    (SELECT e.ordering_key, e.seq FROM {outbox} e
     WHERE e.ordering_key >= $4 AND e.published_at IS NULL {unless_skipped}
     ORDER BY e.ordering_key, e.seq LIMIT 1)
    UNION ALL
    SELECT n.ordering_key, n.seq
    FROM keys k CROSS JOIN LATERAL (
        SELECT e.ordering_key, e.seq FROM {outbox} e
        WHERE e.ordering_key > k.ordering_key AND e.published_at IS NULL {unless_skipped}
        ORDER BY e.ordering_key, e.seq LIMIT 1) n
), heads AS MATERIALIZED (
    SELECT o.seq, o.ordering_key, o.available_at AS due
    FROM keys k JOIN {outbox} o ON o.seq = k.seq
    WHERE o.published_at IS NULL AND o.retired_at IS NULL
      AND o.available_at <= {now}
      AND (o.lease_until IS NULL OR o.lease_until < {now})
    LIMIT $1
    FOR UPDATE OF o SKIP LOCKED
), followers AS MATERIALIZED (
    SELECT o.seq, h.seq AS head, greatest(h.due, n.due) AS due, n.place
    FROM heads h CROSS JOIN LATERAL (
        SELECT r.seq, row_number() OVER w AS place, max(r.available_at) OVER w AS due
        FROM (SELECT e.seq, e.available_at FROM {outbox} e
              WHERE e.ordering_key = h.ordering_key AND e.seq > h.seq
                AND e.published_at IS NULL {unless_skipped}
              ORDER BY e.ordering_key, e.seq
              LIMIT (SELECT $1 / greatest(count(*), 1) - 1 FROM heads)) r
        WINDOW w AS (ORDER BY r.seq)) n
    JOIN {outbox} o ON o.seq = n.seq
    WHERE o.published_at IS NULL AND o.retired_at IS NULL
      AND o.available_at <= {now}
      AND (o.lease_until IS NULL OR o.lease_until < {now})
    FOR UPDATE OF o SKIP LOCKED
), free AS MATERIALIZED (
    SELECT o.seq, o.available_at AS due FROM {outbox} o
    WHERE o.published_at IS NULL AND o.retired_at IS NULL AND o.ordering_key IS NULL
      AND o.available_at <= {now}
      AND (o.lease_until IS NULL OR o.lease_until < {now})
    ORDER BY o.available_at, o.seq
    LIMIT $1
    FOR UPDATE OF o SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT seq FROM (
        SELECT seq, due FROM heads
        UNION ALL
        SELECT seq, due FROM (
            SELECT f.*, row_number() OVER (PARTITION BY f.head ORDER BY f.seq) AS nth
            FROM followers f) f
        WHERE nth = place
        UNION ALL
        SELECT seq, due FROM free) c
    ORDER BY due, seq
    LIMIT $1
)
UPDATE {outbox} o
SET lease_token = $2, lease_until = {now} + $3::bigint * interval '1 millisecond'
FROM picked, lazily WHERE o.seq = picked.seq
RETURNING o.seq, o.id, o.exchange, o.routing_key, o.content_type, o.payload, o.headers,
          o.ordering_key, o.unique_key, o.attempts,
          (extract(epoch FROM {now} - o.created_at) * 1000)::bigint AS age_ms",

    claim_keys: "",
    claim_keyed: "",
    claimed: "",

    mark_published: "
WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE {outbox} SET published_at = {now}, lease_token = NULL, lease_until = NULL
FROM lazily WHERE seq = ANY($1) AND lease_token = $2",

    delete_published: "
WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
DELETE FROM {outbox} USING lazily WHERE seq = ANY($1) AND lease_token = $2",

    mark_failed: "
UPDATE {outbox} o
SET attempts = o.attempts + 1, last_error = f.reason, lease_token = NULL, lease_until = NULL,
    available_at = coalesce({now} + f.delay_ms * interval '1 millisecond', o.available_at),
    retired_at = CASE WHEN f.delay_ms IS NULL THEN {now} END
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS f(seq, reason, delay_ms)
WHERE o.seq = f.seq AND o.lease_token = $4",

    renew: "
UPDATE {outbox} SET lease_until = {now} + $3::bigint * interval '1 millisecond'
WHERE seq = ANY($1) AND lease_token = $2",

    release: "
UPDATE {outbox}
SET lease_token = NULL, lease_until = NULL,
    available_at = CASE WHEN $3::bigint > 0 THEN {now} + $3::bigint * interval '1 millisecond'
                        ELSE available_at END
WHERE seq = ANY($1) AND lease_token = $2",

    pending_count: "SELECT count(*) FROM {outbox} WHERE published_at IS NULL",

    oldest_pending: "
SELECT (extract(epoch FROM {now} - min(created_at)) * 1000)::bigint FROM {outbox}
WHERE published_at IS NULL AND retired_at IS NULL AND (available_at <= {now} OR attempts > 0)",

    retired: "
SELECT seq, id, exchange, routing_key, ordering_key, attempts, last_error, created_at, retired_at
FROM {outbox} WHERE retired_at IS NOT NULL ORDER BY seq LIMIT $1",

    scheduled: "
SELECT seq, id, exchange, routing_key, ordering_key, created_at, available_at FROM {outbox}
WHERE published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}
ORDER BY available_at, seq LIMIT $1",

    // Two steps, of which the first locks nothing: the second looks again, at one row.
    find_scheduled: "
SELECT seq FROM {outbox}
WHERE id = $1 AND published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}",

    cancel: "
DELETE FROM {outbox}
WHERE seq = $1 AND published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}",

    requeue: "
UPDATE {outbox} SET retired_at = NULL, attempts = 0, available_at = {now}
WHERE seq = ANY($1) AND retired_at IS NOT NULL",

    // Of all that purge at a moment, the one that gets the lock does; it goes with the statement.
    purge: "
WITH elected AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('acemq purge {outbox}', 0)) AS is_me
)
DELETE FROM {outbox} WHERE seq IN (
    SELECT seq FROM {outbox}
    WHERE (SELECT is_me FROM elected)
      AND published_at IS NOT NULL AND published_at <= {now} - $1::bigint * interval '1 millisecond'
    ORDER BY published_at LIMIT $2)",

    purged: "",
};
