SELECT id, space, partition, key, tag
FROM records INDEXED BY records_by_expiry
WHERE expires_at <= ?
ORDER BY expires_at
LIMIT ?
