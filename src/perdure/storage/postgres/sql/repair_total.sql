-- The difference goes to the first stripe; what counts is their sum.
INSERT INTO {schema}.totals AS stored (space, tag, stripe, n)
VALUES ($1, $2, 0, $3)
ON CONFLICT (space, tag, stripe) DO UPDATE SET n = stored.n + excluded.n
