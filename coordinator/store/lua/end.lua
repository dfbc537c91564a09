-- end: let go of the job's lock, unless somebody met it busy meanwhile.
--
-- KEYS  1 lock  2 dirty  3 due
-- ARGV  1 owner  2 lock ttl (ms)  3 job id  4 '1': let go in any case, and leave a busy flag to the due index
-- Answers RELEASED | AGAIN (dirty: decide once more, the lock is kept) | LOST (the lock is not ours)
--
-- The flag is cleared by begin alone, so that a repeat (its first reply was lost) gives the same answer.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'LOST' end
if redis.call('EXISTS', KEYS[2]) == 1 then
    if ARGV[4] ~= '1' then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return 'AGAIN'
    end
    local time = redis.call('TIME')
    redis.call('ZADD', KEYS[3], 'XX', 'LT', string.format('%.6f', tonumber(time[1]) + tonumber(time[2]) / 1000000), ARGV[3])
    redis.call('DEL', KEYS[2])
end
redis.call('DEL', KEYS[1])
return 'RELEASED'
