SELECT space, partition, key, tag
FROM {schema}.purge_overdue($1, $2, $3, $4, $5)
