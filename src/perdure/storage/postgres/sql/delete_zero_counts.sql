DELETE FROM {schema}.counts
WHERE n = 0
