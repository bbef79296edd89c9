INSERT INTO {schema}.counts (space, partition, tag, n)
VALUES ($1, $2, $3, $4)
ON CONFLICT (space, partition, tag) DO UPDATE SET n = excluded.n
