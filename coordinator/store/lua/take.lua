-- take: jobs whose staging is to be looked at now, each handed to one coordinator.
--
-- KEYS  1 sweepable  2 staged
-- ARGV  1 now (s)  2 how many  3 when they are to be looked at again if nothing is heard of it (s)
-- Answers {{job, what is known of its staging (JSON)}, …}
--
-- Two coordinators may still look at one job, when the first is slow: looking twice does no harm.
local taken = {}
for _, job in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
    local staged = redis.call('HGET', KEYS[2], job)
    if staged then
        redis.call('ZADD', KEYS[1], 'XX', ARGV[3], job)
        table.insert(taken, {job, staged})
    else
        redis.call('ZREM', KEYS[1], job)
    end
end
return taken
