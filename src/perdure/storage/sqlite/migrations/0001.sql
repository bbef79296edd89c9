CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    partition TEXT NOT NULL,
    key TEXT NOT NULL,
    "order" INTEGER NOT NULL,
    version INTEGER NOT NULL,
    tag TEXT NOT NULL,
    expires_at INTEGER,
    lane TEXT,
    wake_at INTEGER,
    body TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX records_by_address ON records (space, partition, key);

CREATE INDEX records_by_partition ON records (space, partition, "order", key);

CREATE INDEX records_by_partition_tag ON records (space, partition, tag, "order", key);

CREATE INDEX records_by_order ON records (space, "order", key, partition);

CREATE INDEX records_by_tag ON records (space, tag, "order", key, partition);

CREATE INDEX records_by_timer ON records (lane, wake_at, key, partition, space) WHERE lane IS NOT NULL;

CREATE INDEX records_by_expiry ON records (expires_at, space, partition, tag) WHERE expires_at IS NOT NULL;

-- The exact number of stored records by tag, including expired ones. Rows with an empty partition count all partitions.
CREATE TABLE counts (
    space TEXT NOT NULL,
    partition TEXT NOT NULL,
    tag TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (space, partition, tag)
) STRICT, WITHOUT ROWID;
