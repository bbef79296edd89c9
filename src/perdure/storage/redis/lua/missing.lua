-- Count the index entries that records should have but do not have, and add them if requested. Skip damaged records,
-- because their entries are unknown.
--
-- KEYS   timer and expiry index of the shard; six indexes for each partition; records
-- ARGV   1 to add missing entries, else 0; number of partitions;
--        for each partition: partition, space
--        for each record:    number of its partition, key
--
-- Returns the number of missing entries in each of the eight kinds of index.

local repairs, partitions = ARGV[1] == '1', tonumber(ARGV[2])
local first_record = 2 + 6 * partitions
local result = {0, 0, 0, 0, 0, 0, 0, 0}

for n = 1, #KEYS - first_record do
    local at = 2 + 2 * partitions + 2 * (n - 1)
    local number, key = tonumber(ARGV[at + 1]), ARGV[at + 2]
    local head = head_at(KEYS[first_record + n])
    if head and not head.is_damaged then
        local entries = entries_of(head, key, ARGV[2 * number + 1], ARGV[2 * number + 2])
        for index = 1, 8 do
            local index_key = index > 6 and KEYS[index - 6] or KEYS[2 + 6 * (number - 1) + index]
            if entries[index] and not redis.call('ZSCORE', index_key, entries[index]) then
                result[index] = result[index] + 1
                if repairs then
                    redis.call('ZADD', index_key, 0, entries[index])
                end
            end
        end
    end
end

return result
