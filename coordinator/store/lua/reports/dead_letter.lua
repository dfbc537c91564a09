-- dead_letter: reports become dead letters and are acked, together, so that none is lost and none is tried for ever.
--
-- keys: reports dead counters
-- args: consumer_group counter reason entries kept
--
-- kept: about how many dead letters stay.
-- entries: [{id, fields: {}}] (JSON)
-- Answers the number moved; an entry that was acked before (a repeat) is not moved twice.
local moved = 0
for _, entry in ipairs(cjson.decode(args.entries)) do
    -- pcall: a group that is gone has nothing to ack either.
    local pending = redis.pcall('XPENDING', keys.reports, args.consumer_group, entry.id, entry.id, 1)
    if redis.pcall('XACK', keys.reports, args.consumer_group, entry.id) == 1 then
        redis.call('XADD', keys.dead, '*', 'reason', args.reason, 'from', entry.id,
            'deliveries', pending[1] and pending[1][4] or 1, 'report', cjson.encode(entry.fields))
        moved = moved + 1
    end
end
if moved > 0 then
    redis.call('HINCRBY', keys.counters, args.counter, moved)
    redis.call('XTRIM', keys.dead, 'MAXLEN', '~', args.kept)
end
return moved
