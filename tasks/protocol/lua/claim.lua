-- claim: one runner takes one attempt. Compare-and-set on the attempt record.
--
-- keys: job attempts plans inputs reports due
-- args: job group epoch nonce claimant worker ttl event schema_version
-- args: planned text_field
--
-- ttl: of the lease, in seconds. planned: the group without a member's ordinal. text_field: the part before a digest in
-- the name of the field that holds a text.
-- Answers {CLAIMED, plan, inputs, member, params, digest, text, …} | {HELD} | {STALE} | {UNKNOWN_JOB}
-- inputs: what the group reads, one entry for all members of a fork; member: the fork value, '{}' where there is none;
-- params: the job's; digest, text: of each reference in the plan to a text that is stored once
--
-- The same claimant claiming again is CLAIMED (its first reply was lost).
local status, intent, halted, params, revision =
    unpack(redis.call('HMGET', keys.job, 'status', 'intent', 'halted', 'params', 'revision'))
if not status then return {'UNKNOWN_JOB'} end
if terminal(status) then return {'STALE'} end

local attempt = open_attempt(args.group, args.epoch, args.nonce)
if not attempt or (attempt.claimant and attempt.claimant ~= args.claimant) then return {'STALE'} end
local plan = redis.call('HGET', keys.plans, args.planned)
local inputs = redis.call('HGET', keys.inputs, args.planned)
local member = redis.call('HGET', keys.inputs, args.group)
if not plan or not (inputs or member) then return {'STALE'} end
local answer = {'CLAIMED', plan, inputs or '{}', member or '{}', params or '{}'}
-- A reference in JSON (tasks/protocol/texts.py). One that a user's text only looks like finds nothing, and is nobody's.
local given = {}
for digest in string.gmatch(plan, '"\\u0000(%x+)"') do
    local text = not given[digest] and redis.call('HGET', keys.job, args.text_field .. digest)
    if text then
        given[digest] = true
        answer[#answer + 1] = digest
        answer[#answer + 1] = text
    end
end
if attempt.claimant then return answer end
if intent ~= 'run' or (halted or '') ~= '' then return {'HELD'} end

local time = now()
attempt.claimant = args.claimant
attempt.worker = args.worker
attempt.claimed_at = time
attempt.revision = tonumber(revision)
attempt.lease = time + tonumber(args.ttl)
put_attempt(args.group, attempt)
local token = table.concat({args.job, args.group, args.epoch, args.nonce, args.claimant}, '/')
redis.call('XADD', keys.reports, '*', 'v', args.schema_version, 'id', args.event, 'token', token, 'kind', 'claimed',
    'at', stamp(time))
due_now(time)
return answer
