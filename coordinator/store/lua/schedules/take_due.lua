-- take_due: schedules that are due, each handed to one coordinator for a term.
--
-- keys: schedules_due
-- args: term most
--
-- term: seconds after which a schedule is due again if nothing is heard of it.
-- Answers {now, the first due of those that are left or '', schedule, its due, schedule, its due, …}
--
-- Two coordinators may still decide one schedule, when the first is slow: its commit is a compare-and-set.
local time = now()
local answer = {stamp(time), ''}
local again = stamp(time + tonumber(args.term))
for _, schedule in ipairs(redis.call('ZRANGEBYSCORE', keys.schedules_due, '-inf', stamp(time), 'LIMIT', 0, args.most)) do
    redis.call('ZADD', keys.schedules_due, again, schedule)
    table.insert(answer, schedule)
    table.insert(answer, redis.call('ZSCORE', keys.schedules_due, schedule))
end
answer[2] = redis.call('ZRANGE', keys.schedules_due, 0, 0, 'WITHSCORES')[2] or ''
return answer
