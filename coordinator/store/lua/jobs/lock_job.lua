-- lock_job: take the job's lock, and push its due into the near future before anything is read.
--
-- keys: lock dirty job due alive attempts
-- args: job owner lock_ms groups
--
-- groups: whose attempts are read (JSON). If there are none, the answer ends with the grace.
-- Answers {LOCKED, now, due, alive at, grace until, {commit, status, schema}, attempts} | {BUSY, now} | {MISSING, now}
--
-- The due is set to the end of the lock's term. A worker that finishes an attempt after this moves it earlier (ZADD LT), so
-- the commit, which moves it later only if it still is what was set here, can never swallow a wake-up that came after
-- the record was read. If the owner dies, the job is due when the lock's term ends.
local time = now()
if redis.call('EXISTS', keys.job) == 0 then
    redis.call('ZREM', keys.due, args.job)
    return {'MISSING', stamp(time)}
end
if redis.call('GET', keys.lock) ~= args.owner then
    -- A lock that runs for more than a minute (and a term) was taken before the clock was set back: an expiry is a time
    -- of that clock. Its holder, if it lives, loses nothing but the work (rule 8). Below a minute it may be the lock of
    -- a coordinator with a longer term, and is respected.
    if redis.call('PTTL', keys.lock) > math.max(tonumber(args.lock_ms), 60000) then redis.call('DEL', keys.lock) end
    if not redis.call('SET', keys.lock, args.owner, 'NX', 'PX', args.lock_ms) then
        redis.call('SET', keys.dirty, '1', 'PX', 60000)
        return {'BUSY', stamp(time)}
    end
end
redis.call('DEL', keys.dirty)
redis.call('ZADD', keys.due, stamp(time + tonumber(args.lock_ms) / 1000), args.job)
local alive = redis.call('HMGET', keys.alive, 'at', 'grace_until')
local answer = {'LOCKED', stamp(time), redis.call('ZSCORE', keys.due, args.job), alive[1] or '0', alive[2] or '0'}
local groups = cjson.decode(args.groups)
if groups[1] then
    answer[6] = redis.call('HMGET', keys.job, 'commit', 'status', 'schema')
    answer[7] = redis.call('HMGET', keys.attempts, unpack(groups))
end
return answer
