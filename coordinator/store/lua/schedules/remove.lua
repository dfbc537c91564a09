-- remove: forget a schedule, and all that is known of it but the jobs of its runs.
--
-- keys: schedule schedule_events schedule_runs schedules schedules_due
-- args: name expect after
--
-- Answers APPLIED | CONFLICT | MISSING
local commit, follows = unpack(redis.call('HMGET', keys.schedule, 'commit', 'follows'))
if not commit then return 'MISSING' end
if commit ~= args.expect then return 'CONFLICT' end
redis.call('DEL', keys.schedule, keys.schedule_events, keys.schedule_runs)
redis.call('HDEL', keys.schedules, args.name)
for _, dataset in ipairs(cjson.decode(follows or '[]')) do redis.call('SREM', args.after .. dataset, args.name) end
redis.call('ZREM', keys.schedules_due, args.name)
return 'APPLIED'
