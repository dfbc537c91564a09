-- note_sweep: the sweep says that it is alive. A gap in its ticks means an outage: no lease is believed lapsed for one term.
--
-- keys: alive due schedules_due
-- args: period lease_ttl
-- Answers {now, age of the last tick} (s)
--
-- Outages in a row, such as rollbacks, are one grace, of three terms at most. Another begins a term after its end.
--
-- In one script, so that a coordinator that comes back first cannot take work over between the stamp and the grace.
local time = now()
local gap = time - tonumber(redis.call('HGET', keys.alive, 'at') or '0')
if gap > 3 * tonumber(args.period) or gap < 0 then
    -- A clock that was set back leaves every due ahead by as much, and during an outage nobody sees that it was: after
    -- an outage, as before the first tick of all, every job is looked at once and its due is set again.
    for _, index in ipairs({keys.due, keys.schedules_due}) do
        for _, name in ipairs(redis.call('ZRANGE', index, 0, -1)) do
            redis.call('ZADD', index, 'LT', stamp(time), name)
        end
    end
    local term, grace = tonumber(args.lease_ttl), redis.call('HMGET', keys.alive, 'grace_since', 'grace_until')
    local since, ends = tonumber(grace[1] or '0'), tonumber(grace[2] or '0')
    if time < since or time > ends + term then since = time end
    redis.call('HSET', keys.alive, 'grace_since', stamp(since), 'grace_until', stamp(math.min(time, since + 2 * term) + term))
end
redis.call('HSET', keys.alive, 'at', stamp(time), 'period', args.period)
return {stamp(time), stamp(gap)}
