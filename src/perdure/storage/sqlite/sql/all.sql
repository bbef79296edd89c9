SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM records
