SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM {schema}.records
WHERE space || '' = $1 AND ("order", key, partition) < ($3, $4, $2) AND (expires_at IS NULL OR expires_at > $5)
ORDER BY "order" DESC, key DESC, partition DESC
LIMIT $6
