-- submit: a job's record, its runners' plans, its place in the indexes and its first due, together.
--
-- keys: job plans events due jobs pending summary submit_key chain_key reports retries retried_events retried_job vacuums schedule expected failed
-- args: job change
--
-- chain_key: the key of the first of the jobs that this one retries. It names the last of them.
-- pending: the status index of PENDING. retried_job, retried_events: of the job that this one retries.
-- change: {fields: {}, plans: {}, summary, fingerprint, key, reason, vacuums, expect, name, expected, reported_as} (JSON)
-- name, expected: its name, and by which rules a job of that name is expected; the name is empty for a run of a schedule
-- reported_as: the field that it removes from the index of failed jobs; empty for the run of a tick
-- vacuums: how many there had been before the client looked at the warehouse
-- expect: the commit of the schedule that wants the job as its run; '' if none does
-- Answers {SUBMITTED, id} | {EXISTS, id} | {KEY_TAKEN, id} | {NOT_ENDED, status of the job that was to be retried}
-- | {VACUUM, how many there have been} | {SCHEDULE, its last commit}
--
-- Repeating it with the same id changes nothing (its first reply was lost). The same key with the same spec is the
-- same job; with another spec it is an error.
local change = cjson.decode(args.change)
local retry_of = change.fields.retry_of
if redis.call('EXISTS', keys.job) == 1 then return {'SUBMITTED', args.job} end
if change.key ~= '' then
    local first, fingerprint, last, retried = unpack(redis.call('HMGET', keys.submit_key, 'job', 'fingerprint', 'last', 'retried'))
    local same = fingerprint == change.fingerprint or retried == change.fingerprint
    if first then return {same and 'EXISTS' or 'KEY_TAKEN', last or first} end
end
if retry_of ~= '' then
    -- It had ended when it was read; a store that was rolled back since may hold one that runs.
    local status = redis.call('HGET', keys.retried_job, 'status')
    if status and (not terminal(status) or status == 'FINISHED') then return {'NOT_ENDED', status} end
end
-- A vacuum since the client looked did not find this job among those whose versions stay.
local vacuums = redis.call('ZSCORE', keys.vacuums, change.fields.warehouse_id) or '0'
if tonumber(vacuums) ~= change.vacuums then return {'VACUUM', vacuums} end
if change.expect ~= '' then
    -- Or a run would be stored that a stop has taken back, and that no schedule knows. To store it is a commit as well: a
    -- coordinator that judged the schedule without this job judges anew.
    local commit = redis.call('HGET', keys.schedule, 'commit') or ''
    if commit ~= change.expect then return {'SCHEDULE', commit} end
    redis.call('HSET', keys.schedule, 'commit', args.job)
end
if change.key ~= '' then redis.call('HSET', keys.submit_key, 'job', args.job, 'fingerprint', change.fingerprint) end
local time = stamp(now())
redis.call('HSET', keys.job, 'fields', '0 ')
change.fields.submitted_at = time
change.fields.counts = '0 0'
write_record(change.fields)
set_all(keys.plans, change.plans)
local event = {kind = 'SUBMITTED', at = tonumber(time), by = change.fields.submitted_by}
if change.reason ~= '' then event.text = change.reason end
redis.call('XADD', keys.events, '*', 'event', cjson.encode(event))
for _, index in ipairs({keys.due, keys.jobs, keys.pending}) do redis.call('ZADD', index, time, args.job) end
redis.call('HSET', keys.summary, args.job, change.summary)
if change.expected ~= '' then
    redis.call('HSET', keys.expected, change.name, change.expected)
elseif change.name ~= '' then
    redis.call('HDEL', keys.expected, change.name)
end
if change.reported_as ~= '' then redis.call('HDEL', keys.failed, change.reported_as) end
if retry_of ~= '' then
    event.kind, event.text = 'RETRIED', 'as job ' .. args.job
    redis.call('XADD', keys.retried_events, 'NOMKSTREAM', '*', 'event', cjson.encode(event))
    -- Whose staging it may adopt: the staging collector asks (coordinator/publishing/staging_gc.py).
    redis.call('HSET', keys.retries, args.job, retry_of)
    if redis.call('EXISTS', keys.chain_key) == 1 then
        redis.call('HSET', keys.chain_key, 'last', args.job, 'retried', change.fingerprint)
        redis.call('PERSIST', keys.chain_key)  -- until this job has ended, too
    end
end
wake_coordinators()
return {'SUBMITTED', args.job}
