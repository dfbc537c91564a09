-- begin: take the job's lock, and push its due into the near future before anything is read.
--
-- KEYS  1 lock  2 dirty  3 job  4 due  5 alive
-- ARGV  1 owner  2 lock ttl (ms)  3 job id
-- Answers {LOCKED, now, due, alive at, grace until} | {BUSY, now} | {MISSING, now}
--
-- The due is set to the end of the lock's term. Whoever finishes an attempt after this moves it earlier (ZADD LT), so
-- the commit, which moves it later only if it still is what was set here, can never swallow a wake-up that came after
-- the record was read. If we die, the job is due when the lock's term ends.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local stamp = string.format('%.6f', now)
if redis.call('EXISTS', KEYS[3]) == 0 then
    redis.call('ZREM', KEYS[4], ARGV[3])
    return {'MISSING', stamp}
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    -- A lock that runs for more than a minute (and a term) was taken before the clock was set back: an expiry is a time
    -- of that clock. Its holder, if it lives, loses nothing but the work (rule 8). Below a minute it may be the lock of
    -- somebody with a longer term, and is respected.
    if redis.call('PTTL', KEYS[1]) > math.max(tonumber(ARGV[2]), 60000) then redis.call('DEL', KEYS[1]) end
    if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
        redis.call('SET', KEYS[2], '1', 'PX', 60000)
        return {'BUSY', stamp}
    end
end
redis.call('DEL', KEYS[2])
redis.call('ZADD', KEYS[4], string.format('%.6f', now + tonumber(ARGV[2]) / 1000), ARGV[3])
local alive = redis.call('HMGET', KEYS[5], 'at', 'grace_until')
return {'LOCKED', stamp, redis.call('ZSCORE', KEYS[4], ARGV[3]), alive[1] or '0', alive[2] or '0'}
