-- park: put reports aside where people see them, and ack them, together: never acked away, never looped on.
--
-- KEYS  1 reports  2 target stream (dead, or the stream of a newer schema)  3 counters
-- ARGV  1 consumer group  2 counter  3 reason  4 [{id, fields: {}}] (JSON)  5 about how many the target keeps; 0: all
-- Answers the number parked; an entry that was acked before (a repeat) is not parked twice.
local parked = 0
for _, entry in ipairs(cjson.decode(ARGV[4])) do
    -- pcall: a group that is gone has nothing to ack either.
    local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry.id, entry.id, 1)
    if redis.pcall('XACK', KEYS[1], ARGV[1], entry.id) == 1 then
        redis.call('XADD', KEYS[2], '*', 'reason', ARGV[3], 'from', entry.id,
            'deliveries', pending[1] and pending[1][4] or 1, 'report', cjson.encode(entry.fields))
        parked = parked + 1
    end
end
if parked > 0 then
    redis.call('HINCRBY', KEYS[3], ARGV[2], parked)
    if tonumber(ARGV[5]) > 0 then redis.call('XTRIM', KEYS[2], 'MAXLEN', '~', ARGV[5]) end
end
return parked
