-- Records, as many as are read before they have so many bytes together; at least one.
--
-- KEYS   records
-- ARGV   the number of bytes
--
-- Answers the values of the first of them, nil for one that is not there or not a string.

local left = tonumber(ARGV[1])
local answer = {}

for n = 1, #KEYS do
    local value = redis.pcall('GET', KEYS[n])
    if type(value) == 'table' and not string.find(value.err, '^WRONGTYPE') then
        return redis.call('GET', KEYS[n])
    end
    answer[n] = type(value) == 'string' and value
    left = left - (answer[n] and #value or 0)
    if left <= 0 then
        break
    end
end

return answer
