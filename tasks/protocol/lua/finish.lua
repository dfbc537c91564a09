-- finish: the outcome onto the attempt record, the report onto the stream and the job due, together.
--
-- keys: job attempts reports due answered
-- args: job group epoch nonce claimant outcome kind event schema_version kept
--
-- answered: the key that holds the answer to this event, for `kept` seconds. outcome: JSON.
-- Answers APPLIED | DUPLICATE | STALE | UNKNOWN_JOB
--
-- A job that is not in the store is reported all the same: a coordinator makes it a dead letter. So is an outcome that
-- is refused, with the word "refused", for the job's event log.
--
-- The answer is kept longer than any caller repeats: a repeat after a refusal adds no second report, and a repeat after
-- a success is a DUPLICATE even if the coordinator has applied the outcome.
local before = redis.call('GET', keys.answered)
if before == 'APPLIED' then return 'DUPLICATE' end
if before then return before end

local time = now()
local token = table.concat({args.job, args.group, args.epoch, args.nonce, args.claimant}, '/')
local function answer(word, ...)
    redis.call('XADD', keys.reports, '*', 'v', args.schema_version, 'id', args.event, 'token', token,
        'kind', args.kind, 'at', stamp(time), ...)
    redis.call('SET', keys.answered, word, 'EX', args.kept)
    return word
end

local status = redis.call('HGET', keys.job, 'status')
if not status then return answer('UNKNOWN_JOB') end
if terminal(status) then return answer('STALE', 'refused', 'TERMINAL') end
local attempt = open_attempt(args.group, args.epoch, args.nonce)
if not attempt and has_outcome(args.group, args.epoch, args.nonce, args.claimant, args.outcome) then
    redis.call('SET', keys.answered, 'DUPLICATE', 'EX', args.kept)
    return 'DUPLICATE'
end
if not attempt or attempt.claimant ~= args.claimant then return answer('STALE', 'refused', 'STALE') end
attempt.outcome = args.outcome
attempt.outcome_at = time
put_attempt(args.group, attempt)
due_now(time)
return answer('APPLIED')
