-- Return a row if more than :maximum records have expired and are not purged yet.
SELECT 1
FROM records INDEXED BY records_by_expiry
WHERE expires_at <= :now
LIMIT 1 OFFSET :maximum
