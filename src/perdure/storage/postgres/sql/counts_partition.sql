-- What is stored, less what is stored but expired. Those are few, so the index to use is that of expiry:
-- the expressions keep the planner from the others.
SELECT tag, sum(n)::bigint AS live
FROM (
    SELECT tag, n FROM {schema}.counts WHERE space = $1 AND partition = $2
    UNION ALL
    SELECT tag, -1 FROM {schema}.records
    WHERE expires_at <= $3 AND space || ' ' = $1 || ' ' AND partition || ' ' = $2 || ' '
) AS counted
GROUP BY tag
HAVING sum(n) > 0
