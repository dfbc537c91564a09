-- claim: one runner takes one attempt. Compare-and-set on the attempt record.
--
-- KEYS  1 job  2 attempts  3 plans  4 inputs  5 reports  6 due
-- ARGV  1 job id  2 group  3 epoch  4 nonce  5 claimant  6 worker  7 lease ttl (s)  8 event id
--       9 plan field (the group, without a member's ordinal)  10 schema version  11 what comes before a digest in the
--       field of a text
-- Answers {CLAIMED, plan, inputs, member, params, digest, text, …} | {HELD} | {STALE} | {UNKNOWN_JOB}
-- inputs: what the group reads, one entry for all members of a fork; member: the fork value, '{}' where there is none;
-- params: the job's; digest, text: of each reference in the plan to a text that is stored once
--
-- The same claimant claiming again is CLAIMED (its first reply was lost).
local record = redis.call('HMGET', KEYS[1], 'status', 'intent', 'halted', 'params', 'revision')
if not record[1] then return {'UNKNOWN_JOB'} end
local terminal = {FINISHED = true, FAILED = true, CANCELED = true, STOPPED = true}
if terminal[record[1]] then return {'STALE'} end

local raw = redis.call('HGET', KEYS[2], ARGV[2])
if not raw then return {'STALE'} end
local attempt = cjson.decode(raw)
if attempt.epoch ~= tonumber(ARGV[3]) or attempt.nonce ~= ARGV[4] or attempt.outcome then return {'STALE'} end
if attempt.claimant and attempt.claimant ~= ARGV[5] then return {'STALE'} end
local plan = redis.call('HGET', KEYS[3], ARGV[9])
local inputs = redis.call('HGET', KEYS[4], ARGV[9])
local member = redis.call('HGET', KEYS[4], ARGV[2])
if not plan or not (inputs or member) then return {'STALE'} end
local answer = {'CLAIMED', plan, inputs or '{}', member or '{}', record[4] or '{}'}
-- A reference in JSON (tasks/protocol/texts.py). One that a user's text only looks like finds nothing, and is nobody's.
local given = {}
for digest in string.gmatch(plan, '"\\u0000(%x+)"') do
    local text = not given[digest] and redis.call('HGET', KEYS[1], ARGV[11] .. digest)
    if text then
        given[digest] = true
        answer[#answer + 1] = digest
        answer[#answer + 1] = text
    end
end
if attempt.claimant then return answer end
if record[2] ~= 'run' or (record[3] or '') ~= '' then return {'HELD'} end

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
attempt.claimant = ARGV[5]
attempt.worker = ARGV[6]
attempt.claimed_at = now
attempt.revision = tonumber(record[5])
attempt.lease = now + tonumber(ARGV[7])
redis.call('HSET', KEYS[2], ARGV[2], cjson.encode(attempt))
local token = table.concat({ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]}, '/')
redis.call('XADD', KEYS[5], '*', 'v', ARGV[10], 'id', ARGV[8], 'token', token, 'kind', 'claimed',
    'at', string.format('%.6f', now))
redis.call('ZADD', KEYS[6], 'XX', 'LT', now, ARGV[1])
return answer
