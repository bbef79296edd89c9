-- Find the counters that do not match the records.
WITH actual AS (
    SELECT space, partition, tag, count(*) AS n FROM records GROUP BY space, partition, tag
    UNION ALL
    SELECT space, '', tag, count(*) FROM records GROUP BY space, tag
)
SELECT space, partition, tag, sum(stored) AS stored, sum(counted) AS counted
FROM (
    SELECT space, partition, tag, n AS stored, 0 AS counted FROM counts
    UNION ALL
    SELECT space, partition, tag, 0, n FROM actual
)
GROUP BY space, partition, tag
HAVING sum(stored) <> sum(counted)
