-- readmit: reports that waited for a newer coordinator go back onto the report stream, together with leaving theirs.
--
-- keys: reports waiting dead counters
-- args: most dead_kept reason
--
-- waiting: the stream of a schema that is known by now; at most `most` of it go back. dead_kept: about how many the
-- dead stream keeps. reason: why an entry that is no report is parked.
-- Answers {how many went back, how many were parked}; {0, 0}: the stream is empty, and gone.
--
-- Each entry stands in one stream or in the other, so two coordinators at once, or one that dies after this, double and
-- lose none.
local back, parked = 0, 0
for _, entry in ipairs(redis.call('XRANGE', keys.waiting, '-', '+', 'COUNT', args.most)) do
    local left = {}
    for index = 1, #entry[2], 2 do left[entry[2][index]] = entry[2][index + 1] end
    local fields = {}
    local readable, report = pcall(cjson.decode, left.report or '')
    if readable and type(report) == 'table' and report.v then
        for name, value in pairs(report) do
            table.insert(fields, tostring(name))
            table.insert(fields, tostring(value))
        end
    end
    if #fields > 0 then
        redis.call('XADD', keys.reports, '*', unpack(fields))
        back = back + 1
    else
        -- Not written by us. An error here would keep every coordinator from starting.
        redis.call('XADD', keys.dead, 'MAXLEN', '~', args.dead_kept, '*', 'reason', args.reason,
            'from', left.from or entry[1], 'deliveries', 0, 'report', left.report or '{}')
        parked = parked + 1
    end
    redis.call('XDEL', keys.waiting, entry[1])
end
if back > 0 then redis.call('HINCRBY', keys.counters, 'READMITTED', back) end
if parked > 0 then redis.call('HINCRBY', keys.counters, 'UNREADABLE', parked) end
if back + parked == 0 then redis.call('DEL', keys.waiting) end
return {back, parked}
