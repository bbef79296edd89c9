-- A commit, or a purge of one shard: judge every change against what stands, then write all or nothing.
--
-- KEYS   timers and expiries of the shard; six indexes for each scope; one record for each change
-- ARGV   now, the instant after now, channel, message, number of scopes,
--        guarded scope (0: none), most that it admits, number of guarded tags, those tags;
--        for each scope:  partition, space
--        for each change: kind, scope, key, expected standing, growth of the guarded count, new value
--
-- Answers whether it was written, the count that a guard refused (else 0), and what each change met: '!' is a
-- damaged record. A commit that meets one is refused; a purge leaves it.

local now, instant, channel, message = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local scopes, guarded, at_most, tags = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local first_scope = 8 + tags
local first_change = first_scope + 2 * scopes
local first_record = 2 + 6 * scopes

local answer, writes, stored = {0, 0}, {}, {}
local accepted, grows = true, 0

for n = 1, #KEYS - first_record do
    local at = first_change + 6 * (n - 1)
    local kind, expected = ARGV[at + 1], ARGV[at + 4]
    local head = head_at(KEYS[first_record + n])
    local is_damaged = head and head.is_damaged
    local lives = head and not is_damaged and head.expires > now
    local stands = lives and head.standing or ''
    if is_damaged then
        accepted = accepted and kind == 'purge'
        stands = kind == 'purge' and '' or '!'
    elseif kind == 'purge' then
        writes[n] = head and not lives
        stands = writes[n] and head.standing or ''
    elseif kind == 'keep' then
        writes[n] = not lives
    else
        writes[n] = stands == expected
        accepted = accepted and writes[n]
    end
    if writes[n] then
        grows = grows + tonumber(ARGV[at + 5])
    end
    stored[n] = head
    answer[n + 2] = stands
end

if accepted and guarded > 0 and grows > 0 then
    local total = grows
    local place = 2 + 6 * (guarded - 1)
    for n = 1, tags do
        total = total + count(KEYS[place + 2], KEYS[place + 3], ARGV[8 + n], instant)
    end
    if total > at_most then
        accepted = false
        answer[2] = total
    end
end

if not accepted then
    return answer
end

for n = 1, #KEYS - first_record do
    if writes[n] then
        local at = first_change + 6 * (n - 1)
        local scope, key, value = tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 6]
        local partition, space = ARGV[first_scope + 2 * scope - 1], ARGV[first_scope + 2 * scope]
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
                local where = index > 6 and KEYS[index - 6] or KEYS[2 + 6 * (scope - 1) + index]
                if before[index] then
                    redis.call('ZREM', where, before[index])
                end
                if after[index] then
                    redis.call('ZADD', where, 0, after[index])
                end
            end
        end
    end
end

-- What is written stands, whether or not this user may publish.
redis.pcall('PUBLISH', channel, message)
answer[1] = 1
return answer
