SELECT id, version, tag, expires_at
FROM records
WHERE space = ? AND partition = ? AND key = ?
