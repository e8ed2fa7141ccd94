-- acemq saga, version 1 (MySQL 8 and MariaDB 10.6). Times are milliseconds since the epoch.
-- next_at is the time from which a run may be claimed: when it is due, or when its lease ends. It is
-- null once the run has ended.
-- Names and keys are binary, so that neither letter case nor trailing spaces make two of them equal.
CREATE TABLE IF NOT EXISTS {prefix}saga (
    id          VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    saga        VARBINARY(255) NOT NULL,
    version     BIGINT         NOT NULL,
    run_key     VARBINARY(255) NOT NULL,
    status      VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    state       LONGTEXT       NOT NULL,
    trace       TEXT,
    next_at     BIGINT,
    lease_token VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    waits_for   VARBINARY(255),
    waits_until BIGINT,
    problem     TEXT,
    note        TEXT,
    created_at  BIGINT         NOT NULL,
    ended_at    BIGINT,
    UNIQUE KEY run_key (saga, run_key),
    -- What a claim walks.
    KEY due (saga, version, next_at),
    -- What a purge, and the list of unresolved runs, walk.
    KEY ended (saga, status, ended_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS {prefix}saga_journal (
    run_id  VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    seq     BIGINT         NOT NULL,
    kind    VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    step    VARCHAR(255)   NOT NULL,
    attempt BIGINT         NOT NULL,
    state   LONGTEXT,
    detail  LONGTEXT,
    at      BIGINT         NOT NULL,
    PRIMARY KEY (run_id, seq)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS {prefix}saga_signals (
    run_id  VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name    VARBINARY(255) NOT NULL,
    payload LONGTEXT       NOT NULL,
    at      BIGINT         NOT NULL,
    PRIMARY KEY (run_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
