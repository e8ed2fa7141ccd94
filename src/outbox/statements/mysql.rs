//! The outbox in the words of MySQL and MariaDB. Sets of rows are given as one JSON text, joined
//! in front of the table so that each row is found by its primary key and no other is locked.

use super::Dialect;

pub(in crate::outbox) const MYSQL: Dialect = Dialect {
    // One record is added like many.
    insert: "",

    // Followed by the rows, which the store writes.
    insert_many: "
INSERT INTO {outbox} (id, exchange, routing_key, content_type, payload, headers, ordering_key,
                      unique_key, available_at, created_at) ",

    claim: "
SELECT o.seq, o.id, o.exchange, o.routing_key, o.content_type, o.payload, o.headers,
       o.ordering_key, o.unique_key, o.attempts, {now} - o.created_at AS age_ms, o.available_at
FROM {outbox} o FORCE INDEX (pending)
WHERE o.published_at IS NULL AND o.retired_at IS NULL AND o.ordering_key IS NULL
  AND o.available_at <= {now}
  AND (o.lease_until IS NULL OR o.lease_until < {now})
ORDER BY o.available_at, o.seq
LIMIT ?
FOR UPDATE SKIP LOCKED",

    // Reads without a lock. A record that is the first unfinished one of its key stays it until
    // it is published, so that the lock may come afterwards.
    claim_keys: "
SELECT o.seq FROM (
    SELECT min(e.seq) AS seq FROM {outbox} e FORCE INDEX (ordered)
    WHERE e.published_at IS NULL AND e.ordering_key IS NOT NULL {unless_skipped}
    GROUP BY e.ordering_key) h
STRAIGHT_JOIN {outbox} o FORCE INDEX (PRIMARY) ON o.seq = h.seq
WHERE o.published_at IS NULL AND o.retired_at IS NULL
  AND o.available_at <= {now}
  AND (o.lease_until IS NULL OR o.lease_until < {now})
ORDER BY o.available_at, o.seq
LIMIT ?",

    claim_keyed: "
SELECT o.seq, o.id, o.exchange, o.routing_key, o.content_type, o.payload, o.headers,
       o.ordering_key, o.unique_key, o.attempts, {now} - o.created_at AS age_ms, o.available_at
FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
WHERE o.published_at IS NULL AND o.retired_at IS NULL
  AND (o.lease_until IS NULL OR o.lease_until < {now})
FOR UPDATE SKIP LOCKED",

    claimed: "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
SET o.lease_token = ?, o.lease_until = {now} + ?",

    mark_published: "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
SET o.published_at = {now}, o.lease_token = NULL, o.lease_until = NULL
WHERE o.lease_token = ?",

    delete_published: "
DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
WHERE o.lease_token = ?",

    mark_failed: "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', reason TEXT PATH '$[1]', delay_ms BIGINT PATH '$[2]')) AS f
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = f.seq
SET o.attempts = o.attempts + 1, o.last_error = f.reason,
    o.lease_token = NULL, o.lease_until = NULL,
    o.available_at = coalesce({now} + f.delay_ms, o.available_at),
    o.retired_at = CASE WHEN f.delay_ms IS NULL THEN {now} END
WHERE o.lease_token = ?",

    // The lease comes before the token in this text.
    renew: "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
SET o.lease_until = {now} + ?
WHERE o.lease_token = ?",

    // The delay comes twice before the token in this text.
    release: "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
SET o.lease_token = NULL, o.lease_until = NULL,
    o.available_at = CASE WHEN ? > 0 THEN {now} + ? ELSE o.available_at END
WHERE o.lease_token = ?",

    pending_count: "SELECT count(*) FROM {outbox} WHERE published_at IS NULL",

    oldest_pending: "
SELECT {now} - min(created_at) FROM {outbox}
WHERE published_at IS NULL AND retired_at IS NULL AND (available_at <= {now} OR attempts > 0)",

    retired: "
SELECT seq, id, exchange, routing_key, ordering_key, attempts, last_error, created_at, retired_at
FROM {outbox} WHERE retired_at IS NOT NULL ORDER BY seq LIMIT ?",

    scheduled: "
SELECT seq, id, exchange, routing_key, ordering_key, created_at, available_at FROM {outbox}
WHERE published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}
ORDER BY available_at, seq LIMIT ?",

    // Two steps, of which the first locks nothing: the second looks again, at one row.
    find_scheduled: "
SELECT seq FROM {outbox}
WHERE id = ? AND published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}",

    cancel: "
DELETE FROM {outbox}
WHERE seq = ? AND published_at IS NULL AND retired_at IS NULL AND lease_token IS NULL AND attempts = 0
    AND available_at > {now}",

    requeue: "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
SET o.retired_at = NULL, o.attempts = 0, o.available_at = {now}
WHERE o.retired_at IS NOT NULL",

    // Reads without a lock; what it finds is deleted by primary key.
    purge: "
SELECT seq FROM {outbox} FORCE INDEX (pending)
WHERE published_at IS NOT NULL AND published_at <= {now} - ?
ORDER BY published_at LIMIT ?",

    purged: "
DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq
WHERE o.published_at IS NOT NULL",
};
