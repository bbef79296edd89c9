-- Many calls at once, each with its own time. The limit keeps the planner to one seek for each address.
-- Numbers pass as text: the driver would ask the server about arrays of numbers, once for each connection.
SELECT
    wanted.place, found.space, found.partition, found.key, found."order", found.body, found.version, found.tag,
    found.expires_at, found.lane, found.wake_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY
    AS wanted (space, partition, key, now, place)
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.records
    WHERE space = wanted.space AND partition = wanted.partition AND key = wanted.key
        AND (expires_at IS NULL OR expires_at > wanted.now::bigint)
    LIMIT 1
) AS found
