-- commit: what a decision or a command changed of a schedule, all or nothing. Compare-and-set on the last commit.
--
-- keys: schedule schedule_events schedule_runs schedule_ticks schedules schedules_due outbox
-- args: change after
--
-- change: {name, id, expect, commanded, record, spec, line, events: [], notices: [], runs: {job: when it was submitted}, ticks: [[tick, member]], max_ticks, due, due_seen, follows: [dataset]} (JSON)
-- expect: '' to make the schedule. commanded: whether a person asked for it. due: never again where it is null
-- ticks: each replaces the member of its tick; tick is a text, for it stays as precise as it is. max_ticks: the newest that stay
-- Answers APPLIED | CONFLICT | MISSING
--
-- A commit that finds its own id is APPLIED: its first reply was lost. A command is found also after later commits, or
-- its repeat would be given once more.
local change = cjson.decode(args.change)
local commit, commanded, follows = unpack(redis.call('HMGET', keys.schedule, 'commit', 'commanded', 'follows'))
commit = commit or ''
if commit == change.id or commanded == change.id then return 'APPLIED' end
if commit ~= change.expect then return commit == '' and 'MISSING' or 'CONFLICT' end
local time = now()
redis.call('HSET', keys.schedule, 'commit', change.id, 'record', change.record, 'spec', change.spec)
if change.commanded then redis.call('HSET', keys.schedule, 'commanded', change.id) end
redis.call('HSET', keys.schedules, change.name, change.line)
if commit == '' then redis.call('PERSIST', keys.schedule_events) end  -- one of this name was removed before
for _, event in ipairs(change.events) do
    redis.call('XADD', keys.schedule_events, 'MAXLEN', '~', 2000, '*', 'event', event)
end
for _, notice in ipairs(change.notices) do tell(notice) end
for job, at in pairs(change.runs) do redis.call('ZADD', keys.schedule_runs, at, job) end
for _, tick in ipairs(change.ticks) do
    redis.call('ZREMRANGEBYSCORE', keys.schedule_ticks, tick[1], tick[1])
    redis.call('ZADD', keys.schedule_ticks, tick[1], tick[2])
end
if #change.ticks > 0 then redis.call('ZREMRANGEBYRANK', keys.schedule_ticks, 0, -(change.max_ticks + 1)) end
for _, dataset in ipairs(cjson.decode(follows or '[]')) do redis.call('SREM', args.after .. dataset, change.name) end
redis.call('HSET', keys.schedule, 'follows', cjson.encode(change.follows))
for _, dataset in ipairs(change.follows) do redis.call('SADD', args.after .. dataset, change.name) end
if change.due == cjson.null then
    redis.call('ZREM', keys.schedules_due, change.name)
elseif redis.call('ZSCORE', keys.schedules_due, change.name) == change.due_seen and time < tonumber(change.due_seen) then
    redis.call('ZADD', keys.schedules_due, change.due, change.name)
else
    -- Somebody made it due since it was taken: that look must not be lost.
    redis.call('ZADD', keys.schedules_due, 'LT', change.due, change.name)
end
return 'APPLIED'
