SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM {schema}.records
WHERE lane = $1 AND wake_at <= $2 AND (wake_at, key, partition, space) > ($5, $6, $7, $8)
    AND (expires_at IS NULL OR expires_at > $4)
ORDER BY wake_at, key, partition, space
LIMIT $3
