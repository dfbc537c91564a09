-- remove: forget a schedule, and all that is known of it but the jobs of its runs and, for a while, its event log.
--
-- keys: schedule schedule_events schedule_runs schedule_ticks schedules schedules_due backlogs outbox
-- args: name expect after event keep notices
--
-- event: who removed it, and why (JSON). keep: seconds for which the event log stays. notices: a list of JSON, each JSON.
-- Answers APPLIED | CONFLICT | MISSING
local commit, follows = unpack(redis.call('HMGET', keys.schedule, 'commit', 'follows'))
if not commit then return 'MISSING' end
if commit ~= args.expect then return 'CONFLICT' end
redis.call('DEL', keys.schedule, keys.schedule_runs, keys.schedule_ticks)
redis.call('XADD', keys.schedule_events, 'MAXLEN', '~', 2000, '*', 'event', args.event)
redis.call('EXPIRE', keys.schedule_events, args.keep)
redis.call('HDEL', keys.schedules, args.name)
redis.call('HDEL', keys.backlogs, args.name)
for _, dataset in ipairs(cjson.decode(follows or '[]')) do redis.call('SREM', args.after .. dataset, args.name) end
redis.call('ZREM', keys.schedules_due, args.name)
for _, notice in ipairs(cjson.decode(args.notices)) do tell(notice) end
return 'APPLIED'
