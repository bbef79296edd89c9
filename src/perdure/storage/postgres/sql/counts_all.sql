-- The number of live records is the number of stored records minus the expired ones. Few records are expired, so
-- the expressions make the planner use the index by expiry and no other.
SELECT tag, sum(n)::bigint AS live
FROM (
    SELECT tag, n FROM {schema}.totals WHERE space = $1
    UNION ALL
    SELECT tag, -1 FROM {schema}.records
    WHERE expires_at <= $2 AND space || ' ' = $1 || ' '
) AS counted
GROUP BY tag
HAVING sum(n) > 0
