DELETE FROM records
WHERE id = ?
