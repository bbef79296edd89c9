SELECT id, expires_at, version, "order", tag
FROM records
WHERE space = ? AND partition = ? AND key = ?
