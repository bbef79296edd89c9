-- While this script runs, the search path contains the schema of this storage.

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

-- Each kind of listing has its own index. Expressions prevent the planner from using another index: the indexes
-- across all partitions contain `space || ''`, and the indexes by tag contain `"order" + 0`. Otherwise the planner
-- may choose a similar index with a filter, and then read a million records that do not match the filter.

CREATE INDEX records_by_order ON records ((space || ''), "order", key, partition);

CREATE INDEX records_by_tag ON records ((space || ''), tag, ("order" + 0), key, partition);

CREATE INDEX records_by_partition ON records (space, partition, "order", key);

CREATE INDEX records_by_partition_tag ON records (space, partition, tag, ("order" + 0), key);

CREATE INDEX records_by_timer ON records (lane, wake_at, key, partition, space) WHERE lane IS NOT NULL;

CREATE INDEX records_by_expiry ON records (expires_at, space, partition, tag) WHERE expires_at IS NOT NULL;

-- If several indexes seem equally good, as on a new table, the planner uses the one that was created last. That must
-- be this one: with any other index, the lookup of an address would read the whole partition.
ALTER TABLE records ADD CONSTRAINT records_by_address PRIMARY KEY (space, partition, key);

-- The exact number of stored records by tag, including expired ones. A writer must have locked the partition.
CREATE TABLE counts (
    space text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (space, partition, tag)
) WITH (fillfactor = 70);

-- The same numbers across all partitions. Each is the sum of its stripes, because with a single row for each number,
-- commits would wait for each other.
CREATE TABLE totals (
    space text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    stripe integer NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (space, tag, stripe)
) WITH (fillfactor = 50);

-- The number of transactions that have changed records, also in stripes. Clients that cannot be notified poll it.
CREATE TABLE news (
    stripe integer PRIMARY KEY,
    n bigint NOT NULL
) WITH (fillfactor = 50);
