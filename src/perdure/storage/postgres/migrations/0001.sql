-- The schema of this storage is the search path while this runs.

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

-- Each listing has one index, and expressions keep the planner from every other: `space || ''` stands where all
-- partitions are listed, `"order" + 0` where one tag is. It would else take a neighbour and filter, because most
-- records pass, and walk by a million that do not.

CREATE INDEX records_by_order ON records ((space || ''), "order", key, partition);

CREATE INDEX records_by_tag ON records ((space || ''), tag, ("order" + 0), key, partition);

CREATE INDEX records_by_partition ON records (space, partition, "order", key);

CREATE INDEX records_by_partition_tag ON records (space, partition, tag, ("order" + 0), key);

CREATE INDEX records_by_timer ON records (lane, wake_at, key, partition, space) WHERE lane IS NOT NULL;

CREATE INDEX records_by_expiry ON records (expires_at, space, partition, tag) WHERE expires_at IS NOT NULL;

-- Of indexes that seem equal to it the planner takes the last, and on a new table all seem so. If that were
-- another one, looking up an address would walk through the partition.
ALTER TABLE records ADD CONSTRAINT records_by_address PRIMARY KEY (space, partition, key);

-- Exact numbers of stored records, expired ones included. Written under the lock of the partition.
CREATE TABLE counts (
    space text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (space, partition, tag)
) WITH (fillfactor = 70);

-- The same over all partitions, as the sum of stripes: one row would make every commit wait for every other.
CREATE TABLE totals (
    space text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    stripe integer NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (space, tag, stripe)
) WITH (fillfactor = 50);

-- How many transactions have changed a record, in stripes too, for those who cannot be notified.
CREATE TABLE news (
    stripe integer PRIMARY KEY,
    n bigint NOT NULL
) WITH (fillfactor = 50);
