SELECT version
FROM {schema}.perdure_schema
