-- end: let go of the job's lock, unless somebody met it busy meanwhile.
--
-- KEYS  1 lock  2 dirty
-- ARGV  1 owner  2 lock ttl (ms)
-- Answers RELEASED | AGAIN (dirty: decide once more, the lock is kept) | LOST (the lock is not ours)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'LOST' end
if redis.call('DEL', KEYS[2]) == 1 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return 'AGAIN'
end
redis.call('DEL', KEYS[1])
return 'RELEASED'
