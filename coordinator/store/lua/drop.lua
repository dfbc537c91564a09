-- drop: a parked report is removed for good, because a person said so.
--
-- KEYS  1 dead  2 what became of the parked report  3 events of the job (left out where the report names none)
-- ARGV  1 id on the dead stream  2 who asks  3 how long it is remembered (s)
-- Answers {DROPPED} | {ALREADY, what became of it} | {GONE}
local said = redis.call('GET', KEYS[2])
if said then return {'ALREADY', said} end
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not found then return {'GONE'} end

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], cjson.encode({what = 'dropped', by = ARGV[2], at = now}), 'EX', ARGV[3])
if KEYS[3] then
    local reason = ''
    for index = 1, #found[2], 2 do
        if found[2][index] == 'reason' then reason = found[2][index + 1] end
    end
    local event = {kind = 'REPORT_DROPPED', at = now, by = ARGV[2], text = 'parked as ' .. ARGV[1] .. ': ' .. reason}
    redis.call('XADD', KEYS[3], 'NOMKSTREAM', '*', 'event', cjson.encode(event))
end
return {'DROPPED'}
