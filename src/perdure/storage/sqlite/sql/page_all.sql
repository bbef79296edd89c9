SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM records INDEXED BY records_by_order
WHERE space = :space AND ("order", key, partition) > (:order, :key, :partition) AND (expires_at IS NULL OR expires_at > :now)
ORDER BY "order", key, partition
