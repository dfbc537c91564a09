-- unlock_or_again: let go of the job's lock, unless another pass met it busy meanwhile.
--
-- keys: lock dirty due
-- args: job owner lock_ms anyway
--
-- anyway: '1': let go in any case, and leave a busy flag to the due index.
-- Answers RELEASED | AGAIN (dirty: decide once more, the lock is kept) | LOST (the lock is not the owner's)
--
-- The flag is cleared by begin alone, so that a repeat (its first reply was lost) gives the same answer.
if redis.call('GET', keys.lock) ~= args.owner then return 'LOST' end
if redis.call('EXISTS', keys.dirty) == 1 then
    if args.anyway ~= '1' then
        redis.call('PEXPIRE', keys.lock, args.lock_ms)
        return 'AGAIN'
    end
    due_now(args.job, now())
    redis.call('DEL', keys.dirty)
end
redis.call('DEL', keys.lock)
return 'RELEASED'
