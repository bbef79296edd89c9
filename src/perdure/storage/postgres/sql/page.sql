SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM {schema}.records
WHERE {scope} AND ({columns}) {comparison} ({position}) AND (expires_at IS NULL OR expires_at > $5)
ORDER BY {ordering}
LIMIT $6
