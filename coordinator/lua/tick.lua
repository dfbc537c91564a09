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
if gap < 0 or at == 0 then
    -- The clock was set back: what was to be due lies ahead by as much. Look at every job once, and set it anew.
    -- So does the first tick of all, which cannot know.
    -- (test_a_lost_hint_is_found_although_the_clock_was_set_back_before_anybody_had_swept)
    local stamp = string.format('%.6f', now)
    for _, job in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do redis.call('ZADD', KEYS[2], 'LT', stamp, job) end
end
if gap > 3 * tonumber(ARGV[1]) or gap < 0 then
    grace = now + tonumber(ARGV[2])
    redis.call('HSET', KEYS[1], 'grace_until', string.format('%.6f', grace))
end
redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now), 'period', ARGV[1])
return {string.format('%.6f', now), string.format('%.6f', gap), string.format('%.6f', grace)}
