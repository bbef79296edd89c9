-- Read records until their values reach a number of bytes. At least one record is read.
--
-- KEYS   records
-- ARGV   the number of bytes
--
-- Returns the values of the first records. The value is nil if a record does not exist or is not a string.

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
