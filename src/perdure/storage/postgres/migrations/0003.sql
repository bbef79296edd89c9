-- Replace `commit_group`, which in an earlier development version did not return which commits were written.

UPDATE perdure_schema SET version = 3;

DROP FUNCTION IF EXISTS commit_group;

-- Return whether these values of a record can be read: their pages are intact, and they are valid UTF-8.
CREATE FUNCTION is_readable(tag text, lane text, body text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $body$
BEGIN
    PERFORM convert_from(convert_to(each, 'UTF8'), 'UTF8') FROM unnest(ARRAY[tag, lane, body]) AS each;
    RETURN true;
EXCEPTION WHEN data_corrupted OR character_not_in_repertoire THEN
    RETURN false;
END $body$;

-- Run several commits in one transaction. Each commit is decided separately, after the previous ones were applied,
-- and is written only if all of its changes are accepted. For each change, return the state of the record that was
-- stored at its address. For each commit, return whether it was written and, if its guard refused it, the count that
-- it would have reached.
--
-- The arrays whose names start with `of_` have one element for each commit: its partition, its time, the index of its
-- last change, the index of the last tag of its guard, and the space and limit of the guard, or NULL. The other
-- arrays, except `guard_tags`, have one element for each change.
CREATE FUNCTION commit_group(
    patience text, channel text, message text,
    of_partition text[], of_now bigint[], of_last_change integer[],
    of_guard_space text[], of_at_most bigint[], of_last_guard_tag integer[], guard_tags text[],
    kinds text[], spaces text[], keys text[], orders bigint[], before_versions bigint[], before_tags text[],
    versions bigint[], tags text[], bodies text[], expiries bigint[], lanes text[], wakes bigint[],
    OUT written boolean[], OUT overs bigint[], OUT stood_versions bigint[], OUT stood_orders bigint[],
    OUT stood_tags text[]
)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $body$
DECLARE
    my_partition text;
    my_now bigint;
    my_tags text[];
    first_change integer := 1;
    first_guard_tag integer := 1;
    found_version bigint;
    found_order bigint;
    found_tag text;
    found_expiry bigint;
    stale_tags text[] := '{}';
    is_accepted boolean;
    has_written boolean := false;
    grows integer;
    would_be bigint;
    deltas delta[] := '{}';
BEGIN
    written := '{}';
    overs := '{}';
    stood_versions := '{}';
    stood_orders := '{}';
    stood_tags := '{}';
    PERFORM begin_writing(patience, of_partition);

    FOR c IN 1 .. cardinality(of_partition) LOOP
        my_partition := of_partition[c];
        my_now := of_now[c];
        is_accepted := true;

        FOR i IN first_change .. of_last_change[c] LOOP
            SELECT version, "order", tag, expires_at INTO found_version, found_order, found_tag, found_expiry
            FROM records WHERE space = spaces[i] AND partition = my_partition AND key = keys[i];
            IF found_expiry <= my_now THEN
                stale_tags[i] := found_tag;
                found_version := NULL;
                found_order := NULL;
                found_tag := NULL;
            END IF;
            stood_versions[i] := found_version;
            stood_orders[i] := found_order;
            stood_tags[i] := found_tag;
            IF kinds[i] = 'insert' THEN
                is_accepted := is_accepted AND found_version IS NULL;
            ELSIF kinds[i] <> 'keep' THEN
                is_accepted := is_accepted AND found_version IS NOT NULL AND found_version = before_versions[i]
                    AND found_order = orders[i] AND found_tag = before_tags[i];
            END IF;
        END LOOP;

        would_be := NULL;
        IF is_accepted AND of_at_most[c] IS NOT NULL THEN
            my_tags := guard_tags[first_guard_tag : of_last_guard_tag[c]];
            grows := 0;
            FOR i IN first_change .. of_last_change[c] LOOP
                IF spaces[i] = of_guard_space[c] AND (kinds[i] <> 'keep' OR stood_versions[i] IS NULL) THEN
                    IF tags[i] = ANY (my_tags) AND (expiries[i] IS NULL OR expiries[i] > my_now) THEN
                        grows := grows + 1;
                    END IF;
                    IF before_tags[i] = ANY (my_tags) THEN
                        grows := grows - 1;
                    END IF;
                END IF;
            END LOOP;
            FOR attempt IN 1 .. 2 LOOP
                EXIT WHEN grows <= 0;
                SELECT grows + coalesce(sum(stored.n), 0) INTO would_be
                FROM (
                    SELECT n FROM counts
                    WHERE space = of_guard_space[c] AND partition = my_partition AND tag = ANY (my_tags)
                    UNION ALL
                    SELECT n FROM unnest(deltas)
                    WHERE space = of_guard_space[c] AND partition = my_partition AND tag = ANY (my_tags)
                ) AS stored;
                IF would_be <= of_at_most[c] THEN
                    would_be := NULL;
                    EXIT;
                END IF;
                IF attempt = 1 THEN
                    WITH gone AS (
                        DELETE FROM records WHERE expires_at <= my_now AND partition = my_partition
                        RETURNING space, tag
                    )
                    SELECT deltas || array_agg((space, my_partition, tag, -1)::delta), has_written OR count(*) > 0
                    INTO deltas, has_written
                    FROM gone;
                END IF;
            END LOOP;
            is_accepted := would_be IS NULL;
        END IF;
        written[c] := is_accepted;
        overs[c] := would_be;

        FOR i IN first_change .. CASE WHEN is_accepted THEN of_last_change[c] ELSE 0 END LOOP
            CONTINUE WHEN kinds[i] = 'keep' AND stood_versions[i] IS NOT NULL;
            has_written := true;
            IF kinds[i] = 'replace' THEN
                UPDATE records
                SET version = versions[i], tag = tags[i], expires_at = expiries[i], lane = lanes[i],
                    wake_at = wakes[i], body = bodies[i]
                WHERE space = spaces[i] AND partition = my_partition AND key = keys[i];
                CONTINUE WHEN tags[i] = before_tags[i];
            ELSIF kinds[i] = 'delete' THEN
                DELETE FROM records WHERE space = spaces[i] AND partition = my_partition AND key = keys[i];
            ELSE
                IF stale_tags[i] IS NOT NULL THEN
                    DELETE FROM records
                    WHERE space = spaces[i] AND partition = my_partition AND key = keys[i];
                    IF FOUND THEN  -- otherwise the guard has purged it
                        deltas := deltas || (spaces[i], my_partition, stale_tags[i], -1)::delta;
                    END IF;
                END IF;
                INSERT INTO records
                    (space, partition, key, "order", version, tag, expires_at, lane, wake_at, body)
                VALUES
                    (spaces[i], my_partition, keys[i], orders[i], versions[i], tags[i], expiries[i], lanes[i],
                    wakes[i], bodies[i]);
            END IF;
            IF before_tags[i] IS NOT NULL THEN
                deltas := deltas || (spaces[i], my_partition, before_tags[i], -1)::delta;
            END IF;
            IF tags[i] IS NOT NULL THEN
                deltas := deltas || (spaces[i], my_partition, tags[i], 1)::delta;
            END IF;
        END LOOP;

        first_change := of_last_change[c] + 1;
        first_guard_tag := of_last_guard_tag[c] + 1;
    END LOOP;

    IF has_written THEN
        PERFORM end_writing(channel, message, deltas);
    END IF;
END $body$;
