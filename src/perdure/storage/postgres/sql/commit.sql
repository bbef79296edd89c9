-- Numbers are passed as text, because for arrays of numbers the driver would run an extra query on each connection.
SELECT written::text[], overs::text[], stood_versions::text[], stood_orders::text[], stood_tags
FROM {schema}.commit_group(
    patience => $1,
    channel => $2,
    message => $3,
    of_partition => $4,
    of_now => $5::text[]::bigint[],
    of_last_change => $6::text[]::integer[],
    of_guard_space => $7,
    of_at_most => $8::text[]::bigint[],
    of_last_guard_tag => $9::text[]::integer[],
    guard_tags => $10,
    kinds => $11,
    spaces => $12,
    keys => $13,
    orders => $14::text[]::bigint[],
    before_versions => $15::text[]::bigint[],
    before_tags => $16,
    versions => $17::text[]::bigint[],
    tags => $18,
    bodies => $19,
    expiries => $20::text[]::bigint[],
    lanes => $21,
    wakes => $22::text[]::bigint[]
)
