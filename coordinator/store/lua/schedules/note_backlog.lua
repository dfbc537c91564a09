-- note_backlog: stores the backlog of the streams of a schedule.
--
-- keys: schedule backlogs schedules_due
-- args: name backlog notify
--
-- notify: '1' if a rule of the schedule uses its backlog, so the schedule becomes due at once
if redis.call('EXISTS', keys.schedule) == 0 then return 0 end  -- it was removed meanwhile
redis.call('HSET', keys.backlogs, args.name, args.backlog)
if args.notify == '1' then redis.call('ZADD', keys.schedules_due, 'XX', 'LT', stamp(now()), args.name) end
return 1
