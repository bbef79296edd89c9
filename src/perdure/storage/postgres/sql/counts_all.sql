-- The stored records minus the expired ones. Those are few, so the index of expiry is used: the expressions
-- prevent the planner from using another.
SELECT tag, sum(n)::bigint AS live
FROM (
    SELECT tag, n FROM {schema}.totals WHERE space = $1
    UNION ALL
    SELECT tag, -1 FROM {schema}.records
    WHERE expires_at <= $2 AND space || ' ' = $1 || ' '
) AS counted
GROUP BY tag
HAVING sum(n) > 0
