-- While this script runs, the search path is the schema of this storage.

CREATE TABLE perdure_schema (version integer NOT NULL);

INSERT INTO perdure_schema (version) VALUES (1);

CREATE TABLE records (
    space text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    "order" bigint NOT NULL,
    version bigint NOT NULL,
    tag text COLLATE "C" NOT NULL,
    expires_at bigint,
    lane text COLLATE "C",
    wake_at bigint,
    body text NOT NULL
);

-- Each listing has its own index. The expressions prevent the planner from using another: `space || ''` is in the
-- indexes of all partitions, `"order" + 0` in those of one tag. Otherwise the planner may choose a similar index
-- and a filter, because most records match, and then read a million records that do not.

CREATE INDEX records_by_order ON records ((space || ''), "order", key, partition);

CREATE INDEX records_by_tag ON records ((space || ''), tag, ("order" + 0), key, partition);

CREATE INDEX records_by_partition ON records (space, partition, "order", key);

CREATE INDEX records_by_partition_tag ON records (space, partition, tag, ("order" + 0), key);

CREATE INDEX records_by_timer ON records (lane, wake_at, key, partition, space) WHERE lane IS NOT NULL;

CREATE INDEX records_by_expiry ON records (expires_at, space, partition, tag) WHERE expires_at IS NOT NULL;

-- If several indexes seem equally good, as on a new table, the planner uses the last one. This one must be the last:
-- with another, the lookup of an address would read the whole partition.
ALTER TABLE records ADD CONSTRAINT records_by_address PRIMARY KEY (space, partition, key);

-- The exact numbers of stored records, including expired ones. They are written under the lock of the partition.
CREATE TABLE counts (
    space text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (space, partition, tag)
) WITH (fillfactor = 70);

-- The same numbers for all partitions, as sums of stripes: a single row would make commits wait for each other.
CREATE TABLE totals (
    space text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    stripe integer NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (space, tag, stripe)
) WITH (fillfactor = 50);

-- The number of transactions that have changed records, also in stripes, for clients that cannot be notified.
CREATE TABLE news (
    stripe integer PRIMARY KEY,
    n bigint NOT NULL
) WITH (fillfactor = 50);
