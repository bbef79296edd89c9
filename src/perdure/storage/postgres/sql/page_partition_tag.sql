SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM {schema}.records
WHERE space = $1 AND partition = $2 AND tag = $7 AND ("order" + 0, key) > ($3, $4) AND (expires_at IS NULL OR expires_at > $5)
ORDER BY "order" + 0, key
LIMIT $6
