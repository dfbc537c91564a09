-- note_backlog: what a look at the streams of a schedule has found.
--
-- keys: schedule backlogs schedules_due
-- args: name backlog told
--
-- told: '1' if a rule of the schedule concerns its backlog, so that it is decided at once
if redis.call('EXISTS', keys.schedule) == 0 then return 0 end  -- it was removed meanwhile
redis.call('HSET', keys.backlogs, args.name, args.backlog)
if args.told == '1' then redis.call('ZADD', keys.schedules_due, 'XX', 'LT', stamp(now()), args.name) end
return 1
