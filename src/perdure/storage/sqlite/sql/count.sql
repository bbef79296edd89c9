SELECT n
FROM counts
WHERE space = ? AND partition = ? AND tag = ?
