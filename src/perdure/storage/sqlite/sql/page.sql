SELECT space, partition, key, "order", body, version, tag, expires_at, lane, wake_at
FROM records INDEXED BY {index}
WHERE {scope} AND ({columns}) {comparison} ({position}) AND (expires_at IS NULL OR expires_at > :now)
ORDER BY {ordering}
