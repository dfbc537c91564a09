-- command: what a user asks of a job, onto the record. The only script that writes the intent.
--
-- KEYS  1 job  2 events  3 due  4 reports  5 plans
-- ARGV  1 job id  2 {id, expect, set: {}, plans: {}, event} (JSON)
-- Answers APPLIED | CONFLICT | MISSING
--
-- A command is a commit: it takes the compare-and-set on the last commit, so that no decision made before it can be
-- written after it. One that finds its own id is APPLIED: its first reply was lost, and perhaps somebody has committed
-- since.
local change = cjson.decode(ARGV[2])
local standing = redis.call('HMGET', KEYS[1], 'commit', 'commanded')
standing[1] = standing[1] or (redis.call('EXISTS', KEYS[1]) == 1 and '')  -- as in commit
if not standing[1] then return 'MISSING' end
if standing[2] == change.id then return 'APPLIED' end
if standing[1] ~= change.expect then return 'CONFLICT' end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('HSET', KEYS[1], 'commit', change.id, 'commanded', change.id)
if change.set.intent then redis.call('HSET', KEYS[1], 'intent_at', string.format('%.6f', now)) end
for field, value in pairs(change.set) do redis.call('HSET', KEYS[1], field, value) end
for name, plan in pairs(change.plans) do redis.call('HSET', KEYS[5], name, plan) end
local event = cjson.decode(change.event)
event.at = now
redis.call('XADD', KEYS[2], '*', 'event', cjson.encode(event))
redis.call('ZADD', KEYS[3], 'LT', string.format('%.6f', now), ARGV[1])
redis.call('XADD', KEYS[4], '*', 'v', '1', 'kind', 'due', 'job', ARGV[1])
return 'APPLIED'
