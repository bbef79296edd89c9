-- The difference is added to the first stripe; only the sum of the stripes matters.
INSERT INTO {schema}.totals AS stored (space, tag, stripe, n)
VALUES ($1, $2, 0, $3)
ON CONFLICT (space, tag, stripe) DO UPDATE SET n = stored.n + excluded.n
