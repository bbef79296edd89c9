-- Commit changes, or purge records, in one shard. The script compares every change with the stored state, then
-- writes all changes or none.
--
-- KEYS   timer and expiry index of the shard; six indexes for each partition; one record for each change
-- ARGV   now, the microsecond after now, channel, message, number of partitions,
--        number of the guarded partition (0: none), its maximum count, number of guarded tags, those tags;
--        for each partition: partition, space
--        for each change:    kind, number of its partition, key, expected state, delta of the guarded count, value
--
-- Returns 1 if the changes were written, else 0; the count for which the guard refused them, else 0; and the state that
-- each change found, which is '!' for a damaged record. A commit with a damaged record is refused; a purge skips it.

local now, instant, channel, message = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local partitions, guarded, max_count, tags = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local first_partition = 8 + tags
local first_change = first_partition + 2 * partitions
local first_record = 2 + 6 * partitions

local result, writes, stored = {0, 0}, {}, {}
local accepted, delta = true, 0

for n = 1, #KEYS - first_record do
    local at = first_change + 6 * (n - 1)
    local kind, expected = ARGV[at + 1], ARGV[at + 4]
    local head = head_at(KEYS[first_record + n])
    local is_damaged = head and head.is_damaged
    local is_live = head and not is_damaged and head.expires > now
    local state = is_live and head.state or ''
    if is_damaged then
        accepted = accepted and kind == 'purge'
        state = kind == 'purge' and '' or '!'
    elseif kind == 'purge' then
        writes[n] = head and not is_live
        state = writes[n] and head.state or ''
    elseif kind == 'keep' then
        writes[n] = not is_live
    else
        writes[n] = state == expected
        accepted = accepted and writes[n]
    end
    if writes[n] then
        delta = delta + tonumber(ARGV[at + 5])
    end
    stored[n] = head
    result[n + 2] = state
end

if accepted and guarded > 0 and delta > 0 then
    local total = delta
    local first_index = 2 + 6 * (guarded - 1)
    for n = 1, tags do
        total = total + count(KEYS[first_index + 2], KEYS[first_index + 3], ARGV[8 + n], instant)
    end
    if total > max_count then
        accepted = false
        result[2] = total
    end
end

if not accepted then
    return result
end

for n = 1, #KEYS - first_record do
    if writes[n] then
        local at = first_change + 6 * (n - 1)
        local number, key, value = tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 6]
        local partition, space = ARGV[first_partition + 2 * number - 1], ARGV[first_partition + 2 * number]
        local before, after = {}, {}
        if stored[n] then
            before = entries_of(stored[n], key, partition, space)
        end
        if value == '' then
            redis.call('DEL', KEYS[first_record + n])
        else
            redis.call('SET', KEYS[first_record + n], value)
            after = entries_of(head_of(value), key, partition, space)
        end
        for index = 1, 8 do
            if before[index] ~= after[index] then
                local index_key = index > 6 and KEYS[index - 6] or KEYS[2 + 6 * (number - 1) + index]
                if before[index] then
                    redis.call('ZREM', index_key, before[index])
                end
                if after[index] then
                    redis.call('ZADD', index_key, 0, after[index])
                end
            end
        end
    end
end

-- Errors are ignored: the changes are valid even if this user is not allowed to publish.
redis.pcall('PUBLISH', channel, message)
result[1] = 1
return result
