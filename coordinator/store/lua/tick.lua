-- tick: the sweep says that it is alive. A gap in its ticks means an outage: no lease is believed lapsed for one term.
--
-- KEYS  1 alive  2 due
-- ARGV  1 sweep period (s)  2 lease ttl (s)
-- Answers {now, age of the last tick, grace until}
--
-- In one script, so that a coordinator that comes back first cannot take work over between the stamp and the grace.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local alive = redis.call('HMGET', KEYS[1], 'at', 'grace_until')
local at = tonumber(alive[1] or '0')
local grace = tonumber(alive[2] or '0')
local gap = now - at
if gap > 3 * tonumber(ARGV[1]) or gap < 0 then
    -- A clock that was set back leaves every due ahead by as much, and during an outage nobody sees that it was: after
    -- an outage, as before the first tick of all, every job is looked at once and its due set anew.
    local stamp = string.format('%.6f', now)
    for _, job in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do redis.call('ZADD', KEYS[2], 'LT', stamp, job) end
    grace = now + tonumber(ARGV[2])
    redis.call('HSET', KEYS[1], 'grace_until', string.format('%.6f', grace))
end
redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now), 'period', ARGV[1])
return {string.format('%.6f', now), string.format('%.6f', gap), string.format('%.6f', grace)}
