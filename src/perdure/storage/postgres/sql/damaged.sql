SELECT space, partition, key
FROM {schema}.records
WHERE NOT {schema}.is_readable(tag, lane, body)
ORDER BY space, partition, key
