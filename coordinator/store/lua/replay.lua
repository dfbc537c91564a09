-- replay: a parked report goes back onto the report stream, and off the dead stream, together.
--
-- KEYS  1 dead  2 reports  3 what became of the parked report  4 counters  5 job  6 events of the job
-- ARGV  1 id on the dead stream  2 who asks  3 how long it is remembered (s)
-- Answers {REPLAYED} | {ALREADY, what became of it} | {GONE} | {UNKNOWN_JOB}
--
-- Repeating is safe: what became of a parked report is remembered, and a report comes back onto the stream once.
local said = redis.call('GET', KEYS[3])
if said then return {'ALREADY', said} end
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not found then return {'GONE'} end
-- Without its job it would be parked again at once.
if redis.call('EXISTS', KEYS[5]) == 0 then return {'UNKNOWN_JOB'} end

local parked = {}
for index = 1, #found[2], 2 do parked[found[2][index]] = found[2][index + 1] end
local fields = {}
for name, value in pairs(cjson.decode(parked.report)) do
    table.insert(fields, name)
    table.insert(fields, value)
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('XADD', KEYS[2], '*', unpack(fields))
redis.call('XDEL', KEYS[1], ARGV[1])
local became = {what = 'replayed', by = ARGV[2], at = now}
redis.call('SET', KEYS[3], cjson.encode(became), 'EX', ARGV[3])
redis.call('HINCRBY', KEYS[4], 'REPLAYED', 1)
local text = 'parked as ' .. ARGV[1] .. ': ' .. (parked.reason or '')
local event = {kind = 'REPORT_REPLAYED', at = now, by = ARGV[2], text = text}
-- NOMKSTREAM: a log that has expired does not come back, for ever.
redis.call('XADD', KEYS[6], 'NOMKSTREAM', '*', 'event', cjson.encode(event))
return {'REPLAYED'}
