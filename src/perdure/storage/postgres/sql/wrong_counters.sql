-- Find the counters that do not match the records. The partition is NULL for a counter across all partitions.
WITH actual AS (
    SELECT space, partition, tag, count(*) AS n FROM {schema}.records GROUP BY space, partition, tag
)
SELECT space, partition, tag, sum(stored)::bigint AS stored, sum(counted)::bigint AS counted
FROM (
    SELECT space, partition, tag, n AS stored, 0 AS counted FROM {schema}.counts
    UNION ALL
    SELECT space, NULL, tag, n, 0 FROM {schema}.totals
    UNION ALL
    SELECT space, partition, tag, 0, n FROM actual
    UNION ALL
    SELECT space, NULL, tag, 0, n FROM actual
) AS both_ways
GROUP BY space, partition, tag
HAVING sum(stored) <> sum(counted) AND {schema}.is_readable(tag, NULL, NULL)
