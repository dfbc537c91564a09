-- readmit: reports that waited for a newer coordinator go back onto the report stream, together with leaving theirs.
--
-- KEYS  1 reports  2 stream of a schema that is known by now  3 dead  4 counters
-- ARGV  1 at most so many  2 about how many the dead stream keeps  3 reason for what is no report
-- Answers {how many went back, how many were parked}; {0, 0}: the stream is empty, and gone.
--
-- Each entry stands in one stream or in the other, so two coordinators at once, or one that dies after this, double and
-- lose none.
local back, parked = 0, 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', ARGV[1])) do
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
        redis.call('XADD', KEYS[1], '*', unpack(fields))
        back = back + 1
    else
        -- Not written by us. An error here would keep every coordinator from starting.
        redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[2], '*', 'reason', ARGV[3], 'from', left.from or entry[1],
            'deliveries', 0, 'report', left.report or '{}')
        parked = parked + 1
    end
    redis.call('XDEL', KEYS[2], entry[1])
end
if back > 0 then redis.call('HINCRBY', KEYS[4], 'READMITTED', back) end
if parked > 0 then redis.call('HINCRBY', KEYS[4], 'UNREADABLE', parked) end
if back + parked == 0 then redis.call('DEL', KEYS[2]) end
return {back, parked}
