SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM records
WHERE space = :space AND partition = :partition AND key = :key AND (expires_at IS NULL OR expires_at > :now)
