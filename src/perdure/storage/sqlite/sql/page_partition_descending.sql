SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM records INDEXED BY records_by_partition
WHERE space = :space AND partition = :partition AND ("order", key) < (:order, :key) AND (expires_at IS NULL OR expires_at > :now)
ORDER BY "order" DESC, key DESC
