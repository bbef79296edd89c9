-- The live records of each tag.
--
-- KEYS   pairs: an index by tag, and the one of those of its records that expire
-- ARGV   the instant after now
--
-- Answers tags and numbers in turn, a tag perhaps more than once. It steps from tag to tag, whatever the number
-- of records.

local answer = {}

local function add(tags, ends)
    local entry = redis.call('ZRANGE', tags, '-', '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    while entry do
        local tag = string.match(entry, '^[^%z]*')
        local number = count(tags, ends, tag, ARGV[1])
        if number > 0 then
            answer[#answer + 1] = tag
            answer[#answer + 1] = number
        end
        entry = redis.call('ZRANGE', tags, '[' .. tag .. '\1', '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    end
end

for n = 1, #KEYS, 2 do
    add(KEYS[n], KEYS[n + 1])
end
return answer
