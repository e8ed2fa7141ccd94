//! The outbox in SQLite's words. Sets of rows are given as one JSON text.

use super::Dialect;

pub(in crate::outbox) const SQLITE: Dialect = Dialect {
    insert: "
INSERT INTO {outbox} (id, exchange, routing_key, content_type, payload, headers, ordering_key,
                      unique_key, available_at, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, coalesce(?9, {now}), {now})
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING",

    // Followed by the rows, which the store writes.
    insert_many: "
INSERT INTO {outbox} (id, exchange, routing_key, content_type, payload, headers, ordering_key,
                      unique_key, available_at, created_at) ",

    // One statement, which takes the write lock before it reads. It steps from key to key in the
    // index of ordering keys, so that a key with a long backlog costs one step; where fewer keys
    // than places are found, each gets its share of the next rows of its key, up to the first that
    // may not go out. `due` never falls within a run, so that a limit cuts its tail.
    claim: "
WITH RECURSIVE keys (ordering_key) AS (
    SELECT min(e.ordering_key) FROM {outbox} e
    WHERE e.ordering_key IS NOT NULL AND e.published_at IS NULL {unless_skipped}
    UNION ALL
    SELECT (SELECT min(e.ordering_key) FROM {outbox} e
            WHERE e.ordering_key > k.ordering_key AND e.published_at IS NULL {unless_skipped})
    FROM keys k WHERE k.ordering_key IS NOT NULL
), heads AS MATERIALIZED (
    SELECT o.seq, k.ordering_key, o.available_at AS due
    FROM keys k CROSS JOIN {outbox} o
    WHERE o.seq = (
          SELECT e.seq FROM {outbox} e
          WHERE e.ordering_key = k.ordering_key AND e.published_at IS NULL {unless_skipped}
          ORDER BY e.seq LIMIT 1)
      AND o.published_at IS NULL AND o.retired_at IS NULL
      AND o.available_at <= {now}
      AND (o.lease_until IS NULL OR o.lease_until < {now})
), runs (ordering_key, seq, due, places) AS (
    SELECT ordering_key, seq, due, ?1 / (SELECT count(*) FROM heads) - 1 FROM heads
    UNION ALL
    SELECT r.ordering_key, o.seq, max(r.due, o.available_at), r.places - 1
    FROM runs r CROSS JOIN {outbox} o
    WHERE r.places > 0 AND o.seq = (
          SELECT e.seq FROM {outbox} e
          WHERE e.ordering_key = r.ordering_key AND e.seq > r.seq
            AND e.published_at IS NULL {unless_skipped}
          ORDER BY e.seq LIMIT 1)
      AND o.published_at IS NULL AND o.retired_at IS NULL
      AND o.available_at <= {now}
      AND (o.lease_until IS NULL OR o.lease_until < {now})
), free AS (
    SELECT o.seq, o.available_at AS due FROM {outbox} o
    WHERE o.published_at IS NULL AND o.retired_at IS NULL AND o.ordering_key IS NULL
      AND o.available_at <= {now}
      AND (o.lease_until IS NULL OR o.lease_until < {now})
    ORDER BY o.available_at, o.seq
    LIMIT ?1
)
UPDATE {outbox} SET lease_token = ?2, lease_until = {now} + ?3
WHERE seq IN (
    SELECT seq FROM (SELECT seq, due FROM runs UNION ALL SELECT seq, due FROM free)
    ORDER BY due, seq
    LIMIT ?1)
RETURNING seq, id, exchange, routing_key, content_type, payload, headers,
          ordering_key, unique_key, attempts, {now} - created_at AS age_ms",

    claim_keys: "",
    claim_keyed: "",
    claimed: "",

    mark_published: "
UPDATE {outbox} SET published_at = {now}, lease_token = NULL, lease_until = NULL
WHERE seq IN (SELECT value FROM json_each(?1)) AND lease_token = ?2",

    delete_published: "
DELETE FROM {outbox} WHERE seq IN (SELECT value FROM json_each(?1)) AND lease_token = ?2",

    mark_failed: "
UPDATE {outbox}
SET attempts = attempts + 1, last_error = f.reason, lease_token = NULL, lease_until = NULL,
    available_at = coalesce({now} + f.delay_ms, available_at),
    retired_at = CASE WHEN f.delay_ms IS NULL THEN {now} END
FROM (SELECT value ->> 0 AS seq, value ->> 1 AS reason, value ->> 2 AS delay_ms
      FROM json_each(?1)) AS f
WHERE {outbox}.seq = f.seq AND lease_token = ?2",

    renew: "
UPDATE {outbox} SET lease_until = {now} + ?3
WHERE seq IN (SELECT value FROM json_each(?1)) AND lease_token = ?2",

    release: "
UPDATE {outbox}
SET lease_token = NULL, lease_until = NULL,
    available_at = CASE WHEN ?3 > 0 THEN {now} + ?3 ELSE available_at END
WHERE seq IN (SELECT value FROM json_each(?1)) AND lease_token = ?2",

    pending_count: "SELECT count(*) FROM {outbox} WHERE published_at IS NULL",

    oldest_pending: "
SELECT {now} - min(created_at) FROM {outbox}
WHERE published_at IS NULL AND retired_at IS NULL AND (available_at <= {now} OR attempts > 0)",

    retired: "
SELECT seq, id, exchange, routing_key, ordering_key, attempts, last_error, created_at, retired_at
FROM {outbox} WHERE retired_at IS NOT NULL ORDER BY seq LIMIT ?1",

    scheduled: "
SELECT seq, id, exchange, routing_key, ordering_key, created_at, available_at FROM {outbox}
WHERE published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}
ORDER BY available_at, seq LIMIT ?1",

    // Two steps, of which the first locks nothing: the second looks again, at one row.
    find_scheduled: "
SELECT seq FROM {outbox}
WHERE id = ?1 AND published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}",

    cancel: "
DELETE FROM {outbox}
WHERE seq = ?1 AND published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}",

    requeue: "
UPDATE {outbox} SET retired_at = NULL, attempts = 0, available_at = {now}
WHERE seq IN (SELECT value FROM json_each(?1)) AND retired_at IS NOT NULL",

    purge: "
DELETE FROM {outbox} WHERE seq IN (
    SELECT seq FROM {outbox} WHERE published_at IS NOT NULL AND published_at <= {now} - ?1
    ORDER BY published_at LIMIT ?2)",

    purged: "",
};
