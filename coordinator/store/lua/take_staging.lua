-- take_staging: jobs whose staging is to be looked at now, each handed to one coordinator.
--
-- keys: staging_index staged
-- args: time most again_at
--
-- again_at: when they are to be looked at again if nothing is heard of it (s).
-- Answers {{job, what is known of its staging (JSON)}, …}
--
-- Two coordinators may still look at one job, when the first is slow: looking twice does no harm.
local taken = {}
for _, job in ipairs(redis.call('ZRANGEBYSCORE', keys.staging_index, '-inf', args.time, 'LIMIT', 0, args.most)) do
    local staged = redis.call('HGET', keys.staged, job)
    if staged then
        redis.call('ZADD', keys.staging_index, 'XX', args.again_at, job)
        table.insert(taken, {job, staged})
    else
        redis.call('ZREM', keys.staging_index, job)
    end
end
return taken
