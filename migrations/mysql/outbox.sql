-- acemq outbox, version 1 (MySQL 8 and MariaDB 10.6). Times are milliseconds since the epoch.
-- Keys are binary, so that neither letter case nor trailing spaces make two of them equal.
CREATE TABLE IF NOT EXISTS {prefix}outbox (
    seq          BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id           VARCHAR(255)   NOT NULL,
    exchange     VARCHAR(255)   NOT NULL,
    routing_key  VARCHAR(255)   NOT NULL,
    payload      LONGBLOB       NOT NULL,
    content_type VARCHAR(255)   NOT NULL,
    headers      LONGTEXT       NOT NULL,
    ordering_key VARBINARY(255),
    unique_key   VARBINARY(255),
    created_at   BIGINT         NOT NULL,
    available_at BIGINT         NOT NULL,
    attempts     INT            NOT NULL DEFAULT 0,
    last_error   TEXT,
    lease_token  VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    lease_until  BIGINT,
    published_at BIGINT,
    retired_at   BIGINT,
    -- What a claim walks, with the first three null: rows without an ordering key that wait, by
    -- the time from which they may go out. A purge walks the rest of it.
    KEY pending (published_at, retired_at, ordering_key, available_at, seq),
    -- The first unfinished row of each ordering key, however many rows wait behind it.
    KEY ordered (published_at, ordering_key, seq),
    UNIQUE KEY unique_key (unique_key),
    KEY retired (retired_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
