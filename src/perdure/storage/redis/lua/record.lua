-- Functions that all scripts share. A record is stored as one string: version, order, expiry and wake-up time in
-- 16 digits each, then tag, lane and body, separated by NUL. Numbers are compared as text, which works because all
-- of them have the same width. A time that is not set is stored as sixteen nines, which is later than any time.

local NEVER = '9999999999999999'
local MAX_HEAD_BYTES = 4 * 16 + 64 + 1 + 256 + 1

-- Return the fields of a record except its body, nil if there is no record, or only `is_damaged` if it is damaged.
local function head_of(text)
    if text == '' then
        return nil
    end
    local tag, lane = string.match(text, '^([^%z]*)%z([^%z]*)%z', 65)
    if not tag or string.find(string.sub(text, 1, 64), '%D') then
        return {is_damaged = true}
    end
    return {
        state = string.sub(text, 1, 32) .. tag,
        order = string.sub(text, 17, 32),
        expires = string.sub(text, 33, 48),
        wake = string.sub(text, 49, 64),
        tag = tag,
        lane = lane,
    }
end

-- Read the fields of the record with this key. If the key has the wrong type, the record is damaged. After any other
-- error, repeat the command outside of `pcall`, so that the script fails with this error.
local function head_at(key)
    local text = redis.pcall('GETRANGE', key, 0, MAX_HEAD_BYTES - 1)
    if type(text) == 'table' and string.find(text.err, '^WRONGTYPE') then
        return {is_damaged = true}
    end
    return head_of(type(text) == 'string' and text or redis.call('GETRANGE', key, 0, MAX_HEAD_BYTES - 1))
end

-- Return the entries of a record in the eight indexes: six listings and counts of its partition and space, the timer
-- index and the expiry index. An entry is false if the record does not belong in that index.
local function entries_of(head, key, partition, space)
    local can_expire = head.expires ~= NEVER
    local in_partition = head.order .. key
    local in_space = in_partition .. '\0' .. partition
    return {
        in_partition,
        head.tag .. '\0' .. in_partition,
        can_expire and head.tag .. '\0' .. head.expires .. key,
        in_space,
        head.tag .. '\0' .. in_space,
        can_expire and head.tag .. '\0' .. head.expires .. key .. '\0' .. partition,
        head.wake ~= NEVER and head.lane .. '\0' .. head.wake .. key .. '\0' .. partition .. '\0' .. space,
        can_expire and head.expires .. key .. '\0' .. partition .. '\0' .. space,
    }
end

-- Return the number of records with a tag that have not expired. `instant` is the microsecond after now.
local function count(tags, expiries, tag, instant)
    local first = '[' .. tag .. '\0'
    return redis.call('ZLEXCOUNT', tags, first, '(' .. tag .. '\1')
        - redis.call('ZLEXCOUNT', expiries, first, '(' .. tag .. '\0' .. instant)
end
