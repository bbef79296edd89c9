INSERT INTO counts (space, partition, tag, n)
VALUES (?, ?, ?, ?)
ON CONFLICT (space, partition, tag) DO UPDATE SET n = n + excluded.n
