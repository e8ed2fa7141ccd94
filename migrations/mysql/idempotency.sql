-- acemq idempotency, version 1 (MySQL 8 and MariaDB 10.6). Times are milliseconds since the epoch.
-- expires_at is the end of the lease while a row is CLAIMED and of the retention once CONFIRMED.
-- Keys are binary, so that neither letter case nor trailing spaces make two of them equal.
CREATE TABLE IF NOT EXISTS {prefix}idempotency (
    consumer    VARBINARY(255) NOT NULL,
    message_id  VARBINARY(255) NOT NULL,
    state       VARCHAR(10) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    claimed_by  VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    recorded_at BIGINT         NOT NULL,
    expires_at  BIGINT         NOT NULL,
    PRIMARY KEY (consumer, message_id),
    -- What a purge walks.
    KEY expires (expires_at)
) ENGINE = InnoDB;
