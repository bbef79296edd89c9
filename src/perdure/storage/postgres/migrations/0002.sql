-- Functions that write, so that a write takes only one round trip. Each function keeps the search path that is set
-- while this script runs, which contains the schema of this storage.

UPDATE perdure_schema SET version = 2;

-- A change in the number of records with a tag.
CREATE TYPE delta AS (space text, partition text, tag text, n integer);

CREATE TYPE purged AS (space text, partition text, key text, tag text);

-- Prepare a transaction that writes. All transactions take the locks of their partitions in the same order.
CREATE FUNCTION begin_writing(patience text, partitions text[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
DECLARE
    realm integer := hashtext('perdure ' || current_schema());
    place integer;
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    FOR place IN SELECT DISTINCT hashtext(each) FROM unnest(partitions) AS each ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(realm, place);
    END LOOP;
END $body$;

-- Return the number of a stripe's lock. A session that gets this lock commits without a notification. Each client
-- that listens has a shared lock on all stripes, so other sessions cannot get the lock and must notify.
CREATE FUNCTION quiet_lock(stripe integer) RETURNS bigint
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $body$
    SELECT hashtextextended('perdure quiet ' || stripe || ' ' || current_schema(), 0)
$body$;

-- Make all clients send notifications until this session ends. First wait for transactions that do not notify.
CREATE FUNCTION announce_listener() RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
BEGIN
    FOR stripe IN 0 .. 63 LOOP
        PERFORM pg_advisory_lock_shared(quiet_lock(stripe));
    END LOOP;
END $body$;

-- Finish a transaction that has changed records: update the counters (all clients use the same order) and notify.
CREATE FUNCTION end_writing(channel text, message text, deltas delta[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
DECLARE
    my_stripe integer := pg_backend_pid() % 64;
BEGIN
    INSERT INTO counts AS stored (space, partition, tag, n)
    SELECT space, partition, tag, sum(n)
    FROM unnest(deltas)
    GROUP BY space, partition, tag HAVING sum(n) <> 0 ORDER BY space, partition, tag
    ON CONFLICT (space, partition, tag) DO UPDATE SET n = stored.n + excluded.n;

    DELETE FROM counts AS stored
    USING (SELECT DISTINCT space, partition, tag FROM unnest(deltas) WHERE n < 0) AS moved
    WHERE stored.space = moved.space AND stored.partition = moved.partition AND stored.tag = moved.tag
        AND stored.n = 0;

    INSERT INTO totals AS stored (space, tag, stripe, n)
    SELECT space, tag, my_stripe, sum(n)
    FROM unnest(deltas)
    GROUP BY space, tag HAVING sum(n) <> 0 ORDER BY space, tag
    ON CONFLICT (space, tag, stripe) DO UPDATE SET n = stored.n + excluded.n;

    INSERT INTO news AS stored (stripe, n) VALUES (my_stripe, 1)
    ON CONFLICT (stripe) DO UPDATE SET n = stored.n + 1;

    -- Transactions that notify commit one after another, in all databases of the server: notify only if a client
    -- listens. The row of `news` excludes other writers of this stripe, so if the lock is taken, a client listens.
    IF NOT pg_try_advisory_xact_lock(quiet_lock(my_stripe)) THEN
        PERFORM pg_notify(channel, message);
    END IF;
END $body$;

-- Delete up to `most` records that have expired at the time `before`, earliest first. Purges run one after another.
-- If a record changes before its partition is locked, nothing is deleted, and the client repeats the purge.
CREATE FUNCTION purge_overdue(patience text, channel text, message text, before bigint, most integer)
RETURNS SETOF purged
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $body$
DECLARE
    overdue purged[];
    removed purged[];
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    PERFORM pg_advisory_xact_lock(hashtextextended('perdure purge ' || current_schema(), 0));
    SELECT array_agg((space, partition, key, tag)::purged) INTO overdue
    FROM (
        SELECT space, partition, key, tag FROM records WHERE expires_at <= before ORDER BY expires_at LIMIT most
    ) AS found;
    IF overdue IS NULL THEN
        RETURN;
    END IF;
    PERFORM begin_writing(patience, ARRAY (SELECT partition FROM unnest(overdue)));

    WITH gone AS (
        DELETE FROM records AS stored USING unnest(overdue) AS one
        WHERE stored.space = one.space AND stored.partition = one.partition AND stored.key = one.key
            AND stored.expires_at <= before
        RETURNING stored.space, stored.partition, stored.key, stored.tag, stored.expires_at
    )
    SELECT array_agg((space, partition, key, tag)::purged) INTO removed
    FROM (SELECT * FROM gone ORDER BY expires_at, space, partition, key) AS sorted;
    IF cardinality(removed) IS DISTINCT FROM cardinality(overdue) THEN
        RAISE EXCEPTION 'others have changed what was to be purged' USING ERRCODE = 'serialization_failure';
    END IF;

    PERFORM end_writing(
        channel, message, ARRAY (SELECT (space, partition, tag, -1)::delta FROM unnest(removed))
    );
    RETURN QUERY SELECT * FROM unnest(removed);
END $body$;
