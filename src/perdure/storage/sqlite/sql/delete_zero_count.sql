DELETE FROM counts
WHERE space = ? AND partition = ? AND tag = ? AND n = 0
