-- The number of live records is the number of stored records minus the expired ones. The empty partition means all.
SELECT tag, sum(n) AS live
FROM (
    SELECT tag, n FROM counts WHERE space = :space AND partition = :partition
    UNION ALL
    SELECT tag, -count(*) FROM records INDEXED BY records_by_expiry
    WHERE expires_at <= :now AND space = :space AND :partition IN ('', partition)
    GROUP BY tag
)
GROUP BY tag
HAVING live > 0
