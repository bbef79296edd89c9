-- Count the entries of an index that do not match a record, and remove them if requested. Keep the entries of damaged
-- records, because they may be correct.
--
-- KEYS   the index; for each entry: its record
-- ARGV   1 to remove the entries, else 0; the number of the kind of index, from 1 to 8;
--        for each entry: the entry, and the key, partition and space of its record
--
-- Returns the number of entries that do not match a record.

local repairs, index = ARGV[1] == '1', tonumber(ARGV[2])
local number = 0

for n = 1, #KEYS - 1 do
    local at = 2 + 4 * (n - 1)
    local entry = ARGV[at + 1]
    local head = head_at(KEYS[n + 1])
    local is_damaged = head and head.is_damaged or not head and redis.call('EXISTS', KEYS[n + 1]) == 1
    local entries = head and not is_damaged and entries_of(head, ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]) or {}
    if not is_damaged and entries[index] ~= entry and redis.call('ZSCORE', KEYS[1], entry) then
        number = number + 1
        if repairs then
            redis.call('ZREM', KEYS[1], entry)
        end
    end
end

return number
