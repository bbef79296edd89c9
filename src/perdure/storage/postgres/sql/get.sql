-- Read the records of several calls, each with its own time. LIMIT makes the planner seek once for each address.
-- Numbers are passed as text, because for arrays of numbers the driver would run an extra query on each connection.
SELECT
    requested.number, found.space, found.partition, found.key, found."order", found.body, found.version, found.tag,
    found.expires_at, found.lane, found.wake_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY
    AS requested (space, partition, key, now, number)
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.records
    WHERE space = requested.space AND partition = requested.partition AND key = requested.key
        AND (expires_at IS NULL OR expires_at > requested.now::bigint)
    LIMIT 1
) AS found
