-- drop: a dead letter is removed for good, because a person said so.
--
-- keys: dead treated events
-- args: report by kept
--
-- treated: the key that holds what became of the report, for `kept` seconds. report: its id on the dead stream.
-- Answers {DROPPED} | {ALREADY, what became of it} | {GONE}
local before = redis.call('GET', keys.treated)
if before then return {'ALREADY', before} end
local found = redis.call('XRANGE', keys.dead, args.report, args.report)[1]
if not found then return {'GONE'} end

local time, reason = now(), ''
for index = 1, #found[2], 2 do
    if found[2][index] == 'reason' then reason = found[2][index + 1] end
end
redis.call('XDEL', keys.dead, args.report)
redis.call('SET', keys.treated, cjson.encode({what = 'dropped', by = args.by, at = time}), 'EX', args.kept)
local text = 'parked as ' .. args.report .. ': ' .. reason
log_event(cjson.encode({kind = 'REPORT_DROPPED', at = time, by = args.by, text = text}))
return {'DROPPED'}
