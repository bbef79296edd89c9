INSERT INTO records (space, partition, key, "order", body, version, tag, expires_at, lane, wake_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
