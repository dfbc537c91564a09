-- finish: the outcome onto the attempt record, the report onto the stream and the job due, together.
--
-- keys: job attempts reports due answer pool_slots
-- args: job group epoch nonce claimant outcome kind event finishes schema_version kept
--
-- finishes: how many attempts this caller finished, this one included.
-- answer: the key that holds the caller's last answer, for `kept` seconds. outcome: JSON.
-- Answers APPLIED | DUPLICATE | STALE | UNKNOWN_JOB
--
-- A job that is not in the store is reported, too: a coordinator makes it a dead letter. So is an outcome that
-- is refused, with the word "refused", for the job's event log.
--
-- The answer is kept longer than any caller repeats: a repeat after a refusal adds no second report, and a repeat after
-- a success is a DUPLICATE even if the coordinator has applied the outcome.

-- Does the attempt hold exactly this outcome of this claimant?
local function has_outcome()
    local raw = redis.call('HGET', keys.attempts, args.group)
    local attempt = raw and cjson.decode(raw) or {}
    return attempt.epoch == tonumber(args.epoch) and attempt.nonce == args.nonce and attempt.claimant == args.claimant
        and attempt.outcome == args.outcome
end

local event, last, before = unpack(redis.call('HMGET', keys.answer, 'event', 'finished', 'word'))
if event == args.event then return before == 'APPLIED' and 'DUPLICATE' or before end
-- A copy that lay in an old connection, of a finish whose caller has had its answer.
if tonumber(last or '0') > tonumber(args.finishes) then return 'DUPLICATE' end
local time = now()
local token = table.concat({args.job, args.group, args.epoch, args.nonce, args.claimant}, '/')
local function keep(word)
    redis.call('HSET', keys.answer, 'event', args.event, 'finished', args.finishes, 'word', word)
    redis.call('EXPIRE', keys.answer, args.kept)
    return word
end
local function answer(word, ...)
    redis.call('XADD', keys.reports, '*', 'v', args.schema_version, 'id', args.event, 'token', token,
        'kind', args.kind, 'at', stamp(time), ...)
    return keep(word)
end
local status = redis.call('HGET', keys.job, 'status')
if not status then return answer('UNKNOWN_JOB') end
if terminal(status) then return answer('STALE', 'refused', 'TERMINAL') end
local attempt = open_attempt(keys.attempts, args.group, args.epoch, args.nonce)
if not attempt and has_outcome() then return keep('DUPLICATE') end
if not attempt or attempt.claimant ~= args.claimant then return answer('STALE', 'refused', 'STALE') end
attempt.outcome = args.outcome
attempt.outcome_at = time
put_attempt(keys.attempts, args.group, attempt)
if attempt.pool then
    local offer = table.concat({args.job, args.group, args.epoch, args.nonce}, '/')
    redis.call('ZREM', keys.pool_slots, attempt.pool .. '/' .. offer)
end
due_now(args.job, time)
return answer('APPLIED')
