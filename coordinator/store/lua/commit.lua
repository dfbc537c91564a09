-- commit: everything a decision changed, all or nothing. Compare-and-set on the uuid of the last commit.
--
-- KEYS  1 job  2 groups  3 inputs  4 forks  5 attempts  6 events  7 due  8 reports  9 counters  10 summary
--       11 alive  12 status index of the old status  13 of the new one  14 ended  15 plans  16 submit key
--       17 sweepable  18 staged
-- ARGV  1 job id  2 change (JSON)  3 consumer group  4 bound of the event stream  5 channel of the job
--
-- change: {id, expect, guards: [{group, epoch, nonce, kind}], job: {}, groups: {}, inputs: {}, forks: {},
--          attempts: {}, drop: [], forget: [], unfreeze: [], uncollect: [], orders: {}, events: [], due, due_seen, acks: [],
--          counts: {}, refused: {}, summary, submitted_at, expire, staged: {after, …}}
-- Answers APPLIED | CONFLICT | GUARDED | MISSING
--
-- A commit that finds its own id is APPLIED: its first reply was lost, and its author still has hints to send.
-- Validate first, write after: a refused commit leaves nothing behind, not even an event.
local change = cjson.decode(ARGV[2])
-- A record that has lost its commit (it is damaged) can still be ended by force.
local standing = redis.call('HGET', KEYS[1], 'commit') or (redis.call('EXISTS', KEYS[1]) == 1 and '')
if not standing then return 'MISSING' end
if standing == change.id then return 'APPLIED' end
if standing ~= change.expect then return 'CONFLICT' end

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
for _, guard in ipairs(change.guards) do
    local raw = redis.call('HGET', KEYS[5], guard.group)
    if not raw then return 'GUARDED' end
    local attempt = cjson.decode(raw)
    if attempt.epoch ~= guard.epoch or attempt.nonce ~= guard.nonce or attempt.outcome then return 'GUARDED' end
    if guard.kind == 'unclaimed' and attempt.claimant then return 'GUARDED' end
    if guard.kind == 'lapsed' then
        local alive = redis.call('HMGET', KEYS[11], 'at', 'grace_until', 'period')
        local at, grace, period = tonumber(alive[1] or 0), tonumber(alive[2] or 0), tonumber(alive[3] or 1)
        -- A lease further ahead than one term was given before the clock was set back; whoever lived renewed it since.
        local holds = attempt.lease >= now and attempt.lease <= now + change.lease_ttl + 1
        if holds or now <= grace or now < at or now - at > 3 * period then return 'GUARDED' end
    end
end

local function set_all(key, map)
    for field, value in pairs(map) do redis.call('HSET', key, field, value) end
end
redis.call('HSET', KEYS[1], 'commit', change.id)
set_all(KEYS[1], change.job)
set_all(KEYS[2], change.groups)
set_all(KEYS[3], change.inputs)
set_all(KEYS[4], change.forks)
for _, group in ipairs(change.drop) do redis.call('HDEL', KEYS[5], group) end
set_all(KEYS[5], change.attempts)
for _, group in ipairs(change.forget) do redis.call('HDEL', KEYS[2], group) end
for _, group in ipairs(change.unfreeze) do redis.call('HDEL', KEYS[3], group) end
for _, fork in ipairs(change.uncollect) do redis.call('HDEL', KEYS[4], fork) end
for group, order in pairs(change.orders) do
    local raw = redis.call('HGET', KEYS[5], group)
    local attempt = raw and cjson.decode(raw)
    if attempt and attempt.epoch == order[1] and attempt.nonce == order[2] and not attempt.outcome then
        attempt.order = order[3]
        redis.call('HSET', KEYS[5], group, cjson.encode(attempt))
    end
end
for _, event in ipairs(change.events) do
    redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[4], '*', 'event', event)
end
if KEYS[12] ~= KEYS[13] then
    redis.call('ZREM', KEYS[12], ARGV[1])
    redis.call('ZADD', KEYS[13], change.submitted_at, ARGV[1])
end
if change.summary ~= cjson.null then redis.call('HSET', KEYS[10], ARGV[1], change.summary) end
for _, id in ipairs(change.acks) do
    local acked = redis.call('XACK', KEYS[8], ARGV[3], id)
    -- An outcome that was refused is one event, however often its entry is delivered or this script repeated.
    if acked == 1 and change.refused[id] then
        redis.call('XADD', KEYS[6], 'NOMKSTREAM', 'MAXLEN', '~', ARGV[4], '*', 'event', change.refused[id])
    end
end
for name, count in pairs(change.counts) do redis.call('HINCRBY', KEYS[9], name, count) end

-- Instant, where the renewal would be sure: runners of this job have something to hear.
if change.wake then redis.call('PUBLISH', ARGV[5], change.id) end

if change.due == cjson.null then
    -- Terminal: never due again, and kept for as long as the retention says.
    redis.call('ZREM', KEYS[7], ARGV[1])
    redis.call('ZADD', KEYS[14], string.format('%.6f', now + change.expire), ARGV[1])
    for _, index in ipairs({1, 2, 3, 4, 5, 6, 15, 16}) do
        redis.call('EXPIRE', KEYS[index], math.ceil(change.expire))
    end
    if change.staged ~= cjson.null then
        -- What the sweep of its staging must know when the record has expired.
        redis.call('ZADD', KEYS[17], string.format('%.6f', now + change.staged.after), ARGV[1])
        change.staged.forget_at = now + change.expire
        redis.call('HSET', KEYS[18], ARGV[1], cjson.encode(change.staged))
    end
else
    -- Later only if it still is what was set when this decision began, and that has not passed: after it, whoever
    -- finishes an attempt finds the job due already and changes nothing. Earlier always.
    if redis.call('ZSCORE', KEYS[7], ARGV[1]) == change.due_seen and now < tonumber(change.due_seen) then
        redis.call('ZADD', KEYS[7], change.due, ARGV[1])
    else
        redis.call('ZADD', KEYS[7], 'LT', change.due, ARGV[1])
    end
end
return 'APPLIED'
