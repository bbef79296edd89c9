-- Read facts about the server, and the names of perdure's tables that exist in the schema.
SELECT
    current_setting('server_version_num')::integer AS version,
    current_setting('server_encoding') AS encoding,
    current_setting('transaction_isolation') AS isolation,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1) AS has_schema,
    ARRAY (
        SELECT relname::text
        FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = $1 AND relname = ANY ($2::text[])
    ) AS tables,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_attribute
            JOIN pg_catalog.pg_class ON pg_class.oid = attrelid
            JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = $1 AND relname = 'perdure_schema' AND attname = 'version'
    ) AS is_ours
