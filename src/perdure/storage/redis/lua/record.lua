-- What every script knows of a record. Stored, it is one string: version, order, expiry and wake-up with 16
-- digits each, then tag, lane and body with a NUL after the first two. Numbers are never numbers here, only
-- digits of one width, which compare as text; what never comes is sixteen nines, later than any time.

local NEVER = '9999999999999999'
local MOST_HEAD = 4 * 16 + 64 + 1 + 256 + 1

-- All of a record but its body; nil if there is none. Of a damaged one only that it is.
local function head_of(text)
    if text == '' then
        return nil
    end
    local tag, lane = string.match(text, '^([^%z]*)%z([^%z]*)%z', 65)
    if not tag or string.find(string.sub(text, 1, 64), '%D') then
        return {is_damaged = true}
    end
    return {
        standing = string.sub(text, 1, 32) .. tag,
        order = string.sub(text, 17, 32),
        expires = string.sub(text, 33, 48),
        wake = string.sub(text, 49, 64),
        tag = tag,
        lane = lane,
    }
end

local function head_at(key)
    local text = redis.pcall('GETRANGE', key, 0, MOST_HEAD - 1)
    if type(text) == 'table' and string.find(text.err, '^WRONGTYPE') then
        return {is_damaged = true}
    end
    return head_of(type(text) == 'string' and text or redis.call('GETRANGE', key, 0, MOST_HEAD - 1))
end

-- The entries of a record in its eight indexes, in the order of `Scope.keys` and `Shard.keys`.
local function entries_of(head, key, partition, space)
    local ends = head.expires ~= NEVER
    local here = head.order .. key
    local anywhere = here .. '\0' .. partition
    return {
        here,
        head.tag .. '\0' .. here,
        ends and head.tag .. '\0' .. head.expires .. key,
        anywhere,
        head.tag .. '\0' .. anywhere,
        ends and head.tag .. '\0' .. head.expires .. key .. '\0' .. partition,
        head.wake ~= NEVER and head.lane .. '\0' .. head.wake .. key .. '\0' .. partition .. '\0' .. space,
        ends and head.expires .. key .. '\0' .. partition .. '\0' .. space,
    }
end

-- How many records of a tag have not expired before `instant`.
local function count(tags, ends, tag, instant)
    local first = '[' .. tag .. '\0'
    return redis.call('ZLEXCOUNT', tags, first, '(' .. tag .. '\1')
        - redis.call('ZLEXCOUNT', ends, first, '(' .. tag .. '\0' .. instant)
end
