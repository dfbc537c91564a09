-- repair_due: schedules back into the due index that has lost them; one about which nothing is left to decide stays out.
--
-- keys: schedules schedules_due
-- Answers how many were missing
local missing, time = 0, stamp(now())
local lines = redis.call('HGETALL', keys.schedules)
for index = 1, #lines, 2 do
    if not cjson.decode(lines[index + 1]).over then
        missing = missing + redis.call('ZADD', keys.schedules_due, 'NX', time, lines[index])
    end
end
return missing
