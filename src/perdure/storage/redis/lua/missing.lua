-- Records that an index does not know. Damaged records are left out: nobody knows what their entries are.
--
-- KEYS   timers and expiries of the shard; six indexes for each scope; records
-- ARGV   1 to add what is missing, else 0; number of scopes;
--        for each scope:  partition, space
--        for each record: scope, key
--
-- Answers how many entries are missing in each of the eight kinds of index.

local repairs, scopes = ARGV[1] == '1', tonumber(ARGV[2])
local first_record = 2 + 6 * scopes
local answer = {0, 0, 0, 0, 0, 0, 0, 0}

for n = 1, #KEYS - first_record do
    local at = 2 + 2 * scopes + 2 * (n - 1)
    local scope, key = tonumber(ARGV[at + 1]), ARGV[at + 2]
    local head = head_at(KEYS[first_record + n])
    if head and not head.is_damaged then
        local entries = entries_of(head, key, ARGV[2 * scope + 1], ARGV[2 * scope + 2])
        for index = 1, 8 do
            local where = index > 6 and KEYS[index - 6] or KEYS[2 + 6 * (scope - 1) + index]
            if entries[index] and not redis.call('ZSCORE', where, entries[index]) then
                answer[index] = answer[index] + 1
                if repairs then
                    redis.call('ZADD', where, 0, entries[index])
                end
            end
        end
    end
end

return answer
