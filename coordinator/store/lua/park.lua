-- park: put reports aside where people see them, and ack them, together: never acked away, never looped on.
--
-- keys: reports target counters
-- args: consumer_group counter reason entries kept
--
-- target: the dead stream, or the stream of a newer schema; it keeps about `kept` entries, or all if that is 0.
-- entries: [{id, fields: {}}] (JSON)
-- Answers the number parked; an entry that was acked before (a repeat) is not parked twice.
local parked = 0
for _, entry in ipairs(cjson.decode(args.entries)) do
    -- pcall: a group that is gone has nothing to ack either.
    local pending = redis.pcall('XPENDING', keys.reports, args.consumer_group, entry.id, entry.id, 1)
    if redis.pcall('XACK', keys.reports, args.consumer_group, entry.id) == 1 then
        redis.call('XADD', keys.target, '*', 'reason', args.reason, 'from', entry.id,
            'deliveries', pending[1] and pending[1][4] or 1, 'report', cjson.encode(entry.fields))
        parked = parked + 1
    end
end
if parked > 0 then
    redis.call('HINCRBY', keys.counters, args.counter, parked)
    if tonumber(args.kept) > 0 then redis.call('XTRIM', keys.target, 'MAXLEN', '~', args.kept) end
end
return parked
