-- commit: everything a decision changed, all or nothing. Compare-and-set on the uuid of the last commit.
--
-- calls: functions/add_offers functions/count_ended functions/publish_versions
-- keys: job groups inputs forks attempts events due reports counters summary alive status_before status_after ended
-- keys: plans submit_key chain_key staging_index staged turn turns lanes versions schedules_due published totals
-- keys: totals_names outbox failed
-- args: job change consumer_group channel after
--
-- status_before, status_after: the status indexes of the old and of the new status. channel: of the job's runners.
-- change: {id, expect, whole, guards: [{group, epoch, nonce, kind}], job: {}, groups: {}, inputs: {}, plans: {}, forks: {},
--          attempts: {}, drop: [], forget: [], unfreeze: [], uncollect: [], instructions: {}, events: [], notices: [], due, due_seen,
--          offers, withdrawn, lanes, acks: [], counts: {}, refused: {}, summary, submitted_at, expire, notify, lease_ttl,
--          staged: {after, …}, reported_as, published: {dataset@warehouse: [dataset, rows]}, published_as, ended} (JSON)
-- whole: the record is still as whole as it was when it was loaded; else it is halted, or ended by force
-- reported_as: the field in the index of failed jobs for a job that ends FAILED; empty for the run of a tick
-- ended: as in `count_ended`; offers, lanes: as in `add_offers`; withdrawn: [[lane, offer]], which stand no longer
-- Answers APPLIED | CONFLICT | GUARDED | MISSING
--
-- A commit that finds its own id is APPLIED: its first reply was lost, and its author still has wake-ups to send.
-- Validate first, write after: a refused commit leaves nothing behind, not even an event.
local change = cjson.decode(args.change)
-- A record that has lost its commit (it is damaged) can still be ended by force.
local commit = redis.call('HGET', keys.job, 'commit') or (redis.call('EXISTS', keys.job) == 1 and '')
if not commit then return 'MISSING' end
if commit == change.id then return 'APPLIED' end
if commit ~= change.expect then return 'CONFLICT' end
-- What is lost since it was loaded must not count as never written.
local function counts() return redis.call('HLEN', keys.groups) .. ' ' .. redis.call('HLEN', keys.forks) end
if change.whole and not (has_all_fields(keys.job) and redis.call('HGET', keys.job, 'counts') == counts()) then
    return 'CONFLICT'
end

local time = now()
for _, guard in ipairs(change.guards) do
    local attempt = open_attempt(keys.attempts, guard.group, guard.epoch, guard.nonce)
    if not attempt or (guard.kind == 'unclaimed' and attempt.claimant) then return 'GUARDED' end
    if guard.kind == 'lapsed' then
        local alive = redis.call('HMGET', keys.alive, 'at', 'grace_until', 'period')
        local at, grace, period = tonumber(alive[1] or 0), tonumber(alive[2] or 0), tonumber(alive[3] or 1)
        -- A lease further ahead than one term was given before the clock was set back; a runner that lives has renewed it since.
        local holds = attempt.lease >= time and attempt.lease <= time + change.lease_ttl + 1
        if holds or time <= grace or time < at or time - at > 3 * period then return 'GUARDED' end
    end
end

set_all(keys.groups, change.groups)
set_all(keys.inputs, change.inputs)
set_all(keys.plans, change.plans)
set_all(keys.forks, change.forks)
call_with('HDEL', keys.attempts, change.drop)
set_all(keys.attempts, change.attempts)
call_with('HDEL', keys.groups, change.forget)
call_with('HDEL', keys.inputs, change.unfreeze)
call_with('HDEL', keys.forks, change.uncollect)
change.job.commit = change.id
-- A halt changes none of them, and must not count anew what is lost.
local changed = next(change.groups) or next(change.forget) or next(change.forks) or next(change.uncollect)
if change.whole or changed then change.job.counts = counts() end
write_record(change.job)
for group, one in pairs(change.instructions) do
    local attempt = open_attempt(keys.attempts, group, one[1], one[2])
    if attempt then
        attempt.instruction = one[3]
        put_attempt(keys.attempts, group, attempt)
    end
end
for _, one in ipairs(change.withdrawn) do
    local place = change.lanes[one[1]]
    redis.call('ZREM', place.ready, one[2])
    if redis.call('EXISTS', place.ready) == 0 then redis.call('ZREM', keys.lanes, one[1]) end
    redis.call('HDEL', keys.turns, one[1])  -- what was not taken does not count as a turn
end
add_offers(change)
for _, event in ipairs(change.events) do log_event(event) end
for _, notice in ipairs(change.notices) do tell(notice) end
if keys.status_before ~= keys.status_after then
    redis.call('ZREM', keys.status_before, args.job)
    redis.call('ZADD', keys.status_after, change.submitted_at, args.job)
end
if change.summary ~= cjson.null then redis.call('HSET', keys.summary, args.job, change.summary) end
acknowledge(change)

-- The cancel channel tells the runners of this job at once; without it they learn it when they renew.
if change.notify then redis.call('PUBLISH', args.channel, change.id) end

if change.due ~= cjson.null then
    set_due(change, time)
    return 'APPLIED'
end
-- Terminal: never due again, and kept for as long as the retention says.
redis.call('ZREM', keys.due, args.job)
redis.call('ZADD', keys.ended, stamp(time + change.expire), args.job)
publish_versions(change.published, change.published_as, args.after)
local status = redis.call('HGET', keys.job, 'status')
if change.reported_as ~= '' and status == 'FAILED' then redis.call('HSET', keys.failed, change.reported_as, args.job) end
local schedule = redis.call('HGET', keys.job, 'schedule')
if schedule then redis.call('ZADD', keys.schedules_due, 'XX', 'LT', stamp(time), schedule) end
for _, key in ipairs({
    keys.job, keys.groups, keys.inputs, keys.forks, keys.attempts, keys.turns, keys.events, keys.plans, keys.submit_key,
    keys.chain_key, keys.versions,
}) do
    redis.call('EXPIRE', key, math.ceil(change.expire))
end
if change.staged ~= cjson.null then
    -- What the staging collector must know when the record has expired.
    redis.call('ZADD', keys.staging_index, stamp(time + change.staged.after), args.job)
    change.staged.forget_at = time + change.expire
    redis.call('HSET', keys.staged, args.job, cjson.encode(change.staged))
end
count_ended(change, time)
return 'APPLIED'
