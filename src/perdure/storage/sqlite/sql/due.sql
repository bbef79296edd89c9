SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM records INDEXED BY records_by_timer
WHERE lane = :lane AND wake_at <= :until
    AND (wake_at, key, partition, space) > (:after_wake_at, :after_key, :after_partition, :after_space)
    AND (expires_at IS NULL OR expires_at > :now)
ORDER BY wake_at, key, partition, space
