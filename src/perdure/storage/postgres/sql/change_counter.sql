SELECT coalesce(sum(n), 0)::bigint
FROM {schema}.news
