-- Count, and remove if asked to, index entries without a record. Entries of damaged records are kept: they may be
-- correct.
--
-- KEYS   the index; the record of each entry
-- ARGV   1 to remove them, else 0; which of the eight kinds of index it is;
--        for each entry: the entry, and the key, partition and space in it
--
-- Returns how many there are.

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
