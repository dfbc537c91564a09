-- submit: a job's record, its runners' plans, its place in the indexes and its first due, together.
--
-- KEYS  1 job  2 plans  3 events  4 due  5 jobs  6 status index of PENDING  7 summary  8 submit key  9 reports
--       10 retries  11 events of the job that this one retries  12 that job
-- ARGV  1 job id  2 {fields: {}, plans: {}, summary, fingerprint, key, reason} (JSON)
-- Answers {SUBMITTED, id} | {EXISTS, id} | {KEY_TAKEN, id} | {NOT_ENDED, status of the job that was to be retried}
--
-- Repeating it with the same id changes nothing (its first reply was lost). The same key with the same spec is the
-- same job; with another spec it is an error.
local change = cjson.decode(ARGV[2])
if redis.call('EXISTS', KEYS[1]) == 1 then return {'SUBMITTED', ARGV[1]} end
if change.key ~= '' then
    local standing = redis.call('HMGET', KEYS[8], 'job', 'fingerprint')
    if standing[1] then
        if standing[2] == change.fingerprint then return {'EXISTS', standing[1]} end
        return {'KEY_TAKEN', standing[1]}
    end
end
if change.fields.retry_of ~= '' then
    -- It had ended when it was read; a store that was rolled back since may hold one that runs.
    local status = redis.call('HGET', KEYS[12], 'status')
    if status and not ({FAILED = true, CANCELED = true, STOPPED = true})[status] then return {'NOT_ENDED', status} end
end
if change.key ~= '' then redis.call('HSET', KEYS[8], 'job', ARGV[1], 'fingerprint', change.fingerprint) end
local time = redis.call('TIME')
local now = string.format('%.6f', tonumber(time[1]) + tonumber(time[2]) / 1000000)
for field, value in pairs(change.fields) do redis.call('HSET', KEYS[1], field, value) end
redis.call('HSET', KEYS[1], 'submitted_at', now)
for name, plan in pairs(change.plans) do redis.call('HSET', KEYS[2], name, plan) end
local event = {kind = 'SUBMITTED', at = tonumber(now), by = change.fields.submitted_by}
if change.reason ~= '' then event.text = change.reason end
redis.call('XADD', KEYS[3], '*', 'event', cjson.encode(event))
if change.fields.retry_of ~= '' and redis.call('EXISTS', KEYS[11]) == 1 then
    event.kind = 'RETRIED'
    event.text = 'as job ' .. ARGV[1]
    redis.call('XADD', KEYS[11], '*', 'event', cjson.encode(event))
end
redis.call('ZADD', KEYS[4], now, ARGV[1])
redis.call('ZADD', KEYS[5], now, ARGV[1])
redis.call('ZADD', KEYS[6], now, ARGV[1])
redis.call('HSET', KEYS[7], ARGV[1], change.summary)
-- Whose staging it may adopt: the sweep asks (coordinator/publishing/staging_gc.py).
if change.fields.retry_of ~= '' then redis.call('HSET', KEYS[10], ARGV[1], change.fields.retry_of) end
-- A wake-up for whoever reads reports; the due index is what makes it sure.
redis.call('XADD', KEYS[9], '*', 'v', '1', 'kind', 'due', 'job', ARGV[1])
return {'SUBMITTED', ARGV[1]}
