-- Add the difference to the first stripe. Only the sum of all stripes matters.
INSERT INTO {schema}.totals AS stored (space, tag, stripe, n)
VALUES ($1, $2, 0, $3)
ON CONFLICT (space, tag, stripe) DO UPDATE SET n = stored.n + excluded.n
