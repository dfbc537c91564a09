-- finish: the outcome onto the attempt record, the report onto the stream and the job due, together.
--
-- KEYS  1 job  2 attempts  3 reports  4 due  5 what was answered to this event
-- ARGV  1 job id  2 group  3 epoch  4 nonce  5 claimant  6 outcome (JSON text)  7 kind  8 event id
--       9 schema version  10 how long the answer is remembered (s)
-- Answers APPLIED | DUPLICATE | STALE | UNKNOWN_JOB
--
-- A job that is not in the store is still reported, so that a coordinator parks it for people to see
-- (SeaTunnel took "not found" for success and left a job CANCELING for ever). So is an outcome that is refused, with
-- the word "refused", for the job's event log.
--
-- The answer is remembered under the event's own key, for longer than any caller repeats: a repeat of a refused finish
-- reports nothing again, and a repeat of one that was applied, and taken in since, is not told that it was refused.
local said = redis.call('GET', KEYS[5])
if said == 'APPLIED' then return 'DUPLICATE' end
if said then return said end

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local token = table.concat({ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]}, '/')
local function answer(word, ...)
    redis.call('XADD', KEYS[3], '*', 'v', ARGV[9], 'id', ARGV[8], 'token', token, 'kind', ARGV[7],
        'at', string.format('%.6f', now), ...)
    redis.call('SET', KEYS[5], word, 'EX', ARGV[10])
    return word
end

local status = redis.call('HGET', KEYS[1], 'status')
if not status then return answer('UNKNOWN_JOB') end
local terminal = {FINISHED = true, FAILED = true, CANCELED = true, STOPPED = true}
if terminal[status] then return answer('STALE', 'refused', 'TERMINAL') end
local raw = redis.call('HGET', KEYS[2], ARGV[2])
if not raw then return answer('STALE', 'refused', 'STALE') end
local attempt = cjson.decode(raw)
if attempt.epoch ~= tonumber(ARGV[3]) or attempt.nonce ~= ARGV[4] or attempt.claimant ~= ARGV[5] then
    return answer('STALE', 'refused', 'STALE')
end
if attempt.outcome then
    -- Applied by a release that remembered it nowhere else.
    if attempt.outcome_id == ARGV[8] then return 'DUPLICATE' end
    return answer('STALE', 'refused', 'STALE')
end
attempt.outcome = ARGV[6]
attempt.outcome_id = ARGV[8]
attempt.outcome_at = now
redis.call('HSET', KEYS[2], ARGV[2], cjson.encode(attempt))
redis.call('ZADD', KEYS[4], 'XX', 'LT', now, ARGV[1])
return answer('APPLIED')
