-- Count the live records with each tag.
--
-- KEYS   pairs of indexes: all records by tag, and the records that can expire by tag
-- ARGV   the microsecond after now
--
-- Returns a flat list of tags and numbers. A tag may occur more than once. The script seeks from one tag to the
-- next, so its cost does not depend on the number of records.

local result = {}

local function add(tags, expiries)
    local entry = redis.call('ZRANGE', tags, '-', '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    while entry do
        local tag = string.match(entry, '^[^%z]*')
        local number = count(tags, expiries, tag, ARGV[1])
        if number > 0 then
            result[#result + 1] = tag
            result[#result + 1] = number
        end
        entry = redis.call('ZRANGE', tags, '[' .. tag .. '\1', '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    end
end

for n = 1, #KEYS, 2 do
    add(KEYS[n], KEYS[n + 1])
end
return result
