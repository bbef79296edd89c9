-- Read a range of each of several indexes, on a server that has all shards.
--
-- KEYS   indexes
-- ARGV   the last bound; the maximum number of entries of each index; 1 for descending order, else 0;
--        for each index: the first bound
--
-- Returns a list of entries for each index.

local result = {}
for n = 1, #KEYS do
    local first = ARGV[3 + n]
    if ARGV[3] == '1' then
        result[n] = redis.call('ZRANGE', KEYS[n], first, ARGV[1], 'BYLEX', 'REV', 'LIMIT', 0, ARGV[2])
    else
        result[n] = redis.call('ZRANGE', KEYS[n], first, ARGV[1], 'BYLEX', 'LIMIT', 0, ARGV[2])
    end
end
return result
