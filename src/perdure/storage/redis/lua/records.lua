-- Read records until the total size of their values reaches a limit. Read at least one record.
--
-- KEYS   records
-- ARGV   the limit in bytes
--
-- Returns the values of the records that were read, in order. A value is nil if the record does not exist or is not a
-- string.

local left = tonumber(ARGV[1])
local result = {}

for n = 1, #KEYS do
    local value = redis.pcall('GET', KEYS[n])
    if type(value) == 'table' and not string.find(value.err, '^WRONGTYPE') then
        return redis.call('GET', KEYS[n])
    end
    result[n] = type(value) == 'string' and value
    left = left - (result[n] and #value or 0)
    if left <= 0 then
        break
    end
end

return result
