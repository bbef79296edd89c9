SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM records INDEXED BY records_by_timer
WHERE lane = :lane AND wake_at <= :until AND (expires_at IS NULL OR expires_at > :now)
ORDER BY wake_at, key, partition, space
