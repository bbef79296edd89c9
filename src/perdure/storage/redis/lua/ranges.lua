-- Stretches of several indexes at once, for servers that have all shards.
--
-- KEYS   indexes
-- ARGV   the last bound, how many entries of each at most, 1 to go backwards; the first bound of each
--
-- Answers a list of entries for each.

local answer = {}
for n = 1, #KEYS do
    local first = ARGV[3 + n]
    if ARGV[3] == '1' then
        answer[n] = redis.call('ZRANGE', KEYS[n], first, ARGV[1], 'BYLEX', 'REV', 'LIMIT', 0, ARGV[2])
    else
        answer[n] = redis.call('ZRANGE', KEYS[n], first, ARGV[1], 'BYLEX', 'LIMIT', 0, ARGV[2])
    end
end
return answer
