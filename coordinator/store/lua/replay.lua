-- replay: a dead letter goes back onto the report stream, and off the dead stream, together.
--
-- keys: dead reports treated counters job events
-- args: report by kept
--
-- treated: the key that holds what became of the report, for `kept` seconds. report: its id on the dead stream.
-- Answers {REPLAYED} | {ALREADY, what became of it} | {GONE} | {UNKNOWN_JOB}
--
-- Repeating is safe: what became of a dead letter is remembered, and a report comes back onto the stream once.
local before = redis.call('GET', keys.treated)
if before then return {'ALREADY', before} end
local found = redis.call('XRANGE', keys.dead, args.report, args.report)[1]
if not found then return {'GONE'} end
-- Without its job the report would be a dead letter again at once.
if redis.call('EXISTS', keys.job) == 0 then return {'UNKNOWN_JOB'} end

local letter = {}
for index = 1, #found[2], 2 do letter[found[2][index]] = found[2][index + 1] end
local fields = {}
for name, value in pairs(cjson.decode(letter.report)) do
    table.insert(fields, name)
    table.insert(fields, value)
end
local time = now()
redis.call('XADD', keys.reports, '*', unpack(fields))
redis.call('XDEL', keys.dead, args.report)
redis.call('SET', keys.treated, cjson.encode({what = 'replayed', by = args.by, at = time}), 'EX', args.kept)
redis.call('HINCRBY', keys.counters, 'REPLAYED', 1)
local text = 'parked as ' .. args.report .. ': ' .. (letter.reason or '')
log_event(cjson.encode({kind = 'REPORT_REPLAYED', at = time, by = args.by, text = text}))
return {'REPLAYED'}
