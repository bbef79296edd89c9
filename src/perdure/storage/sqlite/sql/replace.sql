UPDATE records
SET body = ?, version = ?, tag = ?, expires_at = ?, lane = ?, wake_at = ?
WHERE id = ?
