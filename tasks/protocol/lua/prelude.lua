-- prelude: functions that the loader puts before each script that uses them. A blank line ends each function.
--
-- `keys` and `args` are those that the header of the script declares.

-- Seconds, by the clock of Redis.
local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function stamp(seconds) return string.format('%.6f', seconds) end

local function terminal(status)
    return status == 'FINISHED' or status == 'FAILED' or status == 'CANCELED' or status == 'STOPPED'
end

local function set_all(key, map)
    for field, value in pairs(map) do redis.call('HSET', key, field, value) end
end

-- The attempt of `group` that has this epoch and nonce and no outcome yet; else nil. `attempts`: the key of all.
local function open_attempt(attempts, group, epoch, nonce)
    local raw = redis.call('HGET', attempts, group)
    local attempt = raw and cjson.decode(raw)
    if attempt and attempt.epoch == tonumber(epoch) and attempt.nonce == nonce and not attempt.outcome then
        return attempt
    end
end

-- Does the attempt of `group` hold exactly this outcome of this claimant?
local function has_outcome(group, epoch, nonce, claimant, outcome)
    local raw = redis.call('HGET', keys.attempts, group)
    local attempt = raw and cjson.decode(raw) or {}
    return attempt.epoch == tonumber(epoch) and attempt.nonce == nonce and attempt.claimant == claimant
        and attempt.outcome == outcome
end

local function put_attempt(attempts, group, attempt) redis.call('HSET', attempts, group, cjson.encode(attempt)) end

-- A worker has written something: its job is due now, unless the job has ended.
local function due_now(job, time) redis.call('ZADD', keys.due, 'XX', 'LT', stamp(time), job) end

-- Appends to the event log of a job that goes on.
local function log_event(event) redis.call('XADD', keys.events, 'MAXLEN', '~', 20000, '*', 'event', event) end

-- Appends to the event log if there is one: the log of a job that is forgotten does not come back for ever.
local function log_late_event(event)
    redis.call('XADD', keys.events, 'NOMKSTREAM', 'MAXLEN', '~', 20000, '*', 'event', event)
end

-- A wake-up for the coordinators; the due index makes it sure.
local function wake_coordinators() redis.call('XADD', keys.reports, '*', 'v', '1', 'kind', 'due', 'job', args.job) end

-- Acks and counts reports. A refused outcome is one event, however often its entry is delivered or the script repeated.
local function acknowledge(change)
    for _, id in ipairs(change.acks) do
        local acked = redis.call('XACK', keys.reports, args.consumer_group, id)
        if acked == 1 and change.refused[id] then log_late_event(change.refused[id]) end
    end
    for name, count in pairs(change.counts) do redis.call('HINCRBY', keys.counters, name, count) end
end

-- Sets when a job is looked at next. The due may always move earlier. It moves later only if nobody changed it since
-- `begin` and it has not passed yet. After it has passed, a worker that finishes leaves it as it is, so moving it would
-- lose that wake-up.
local function set_due(change, time)
    if redis.call('ZSCORE', keys.due, args.job) == change.due_seen and time < tonumber(change.due_seen) then
        redis.call('ZADD', keys.due, change.due, args.job)
    else
        redis.call('ZADD', keys.due, 'LT', change.due, args.job)
    end
end

-- The fields of a stream entry, by name.
local function fields_of(entry)
    local fields = {}
    for index = 1, #entry[2], 2 do fields[entry[2][index]] = entry[2][index + 1] end
    return fields
end

-- Appends a report with these fields to the report stream.
local function report(fields)
    local list = {}
    for name, value in pairs(fields) do
        list[#list + 1] = tostring(name)
        list[#list + 1] = tostring(value)
    end
    redis.call('XADD', keys.reports, '*', unpack(list))
end

-- Adds offers to the ready sets of their queues, and rings for awake runners. An offer that stands already keeps its
-- turn. The offers of one job have one turn each, counted from the turn that is next on that queue: jobs take turns, and
-- a job that comes later need not wait for all offers of a wide one.
--
-- change: {offers: [[queue, offer]], queues: {queue: {ready, bell}}}
local function add_offers(change)
    local added, last = {}, {}
    for _, one in ipairs(change.offers) do
        local queue, offer = one[1], one[2]
        if not last[queue] then
            local next_turn = redis.call('ZRANGE', change.queues[queue].ready, 0, 0, 'WITHSCORES')[2]
            next_turn = next_turn or redis.call('HGET', keys.turn, queue) or '0'
            last[queue] = math.max(tonumber(next_turn), tonumber(redis.call('HGET', keys.turns, queue) or '0'))
        end
        if redis.call('ZADD', change.queues[queue].ready, 'NX', last[queue] + 1, offer) == 1 then
            last[queue] = last[queue] + 1
            added[queue] = (added[queue] or 0) + 1
        end
    end
    for queue in pairs(last) do redis.call('SADD', keys.ready_queues, queue) end
    for queue, count in pairs(added) do
        redis.call('HSET', keys.turns, queue, last[queue])
        -- An entry that nobody waits for is gone in a moment: whoever takes it for nothing looks once in vain.
        local bell = change.queues[queue].bell
        for _ = redis.call('LLEN', bell) + 1, math.min(count, 16) do redis.call('LPUSH', bell, '') end
        redis.call('PEXPIRE', bell, 100)
    end
end

-- Claims one offer for `taking.claimant`. Returns the order, as `take` answers it; nil if the offer does not stand.
--
-- taking: {queues: [{name, ready}], runner, worker, claimant, ttl, event, schema_version, text_field, leaves,
--          job, attempts, plans, inputs}; the last four are keys of the job '\0'
local function claim_offer(offer, taking)
    local job, group, epoch, nonce = string.match(offer, '^([^/]+)/([^/]+)/(%d+)/([%w_]+)$')
    if not job then return end
    local function key(name) return (string.gsub(taking[name], '%z', job)) end
    local record, attempts, inputs_key = key('job'), key('attempts'), key('inputs')
    local status, intent, halted, params, revision =
        unpack(redis.call('HMGET', record, 'status', 'intent', 'halted', 'params', 'revision'))
    if not status or terminal(status) then return end
    local attempt = open_attempt(attempts, group, epoch, nonce)
    if not attempt or (attempt.claimant and attempt.claimant ~= taking.claimant) then return end
    if not attempt.claimant and (intent ~= 'run' or (halted or '') ~= '') then return end
    local planned = string.match(group, '^[^%[]+')
    local plan = redis.call('HGET', key('plans'), planned)
    local inputs = redis.call('HGET', inputs_key, planned)
    local member = redis.call('HGET', inputs_key, group)
    if not plan or not (inputs or member) then return end
    local order = {'CLAIMED', offer, plan, inputs or '{}', member or '{}', params or '{}'}
    -- A reference in JSON (tasks/protocol/texts.py). One that a user's text only looks like finds nothing, and is nobody's.
    local given = {}
    for digest in string.gmatch(plan, '"\\u0000(%x+)"') do
        local text = not given[digest] and redis.call('HGET', record, taking.text_field .. digest)
        if text then
            given[digest] = true
            order[#order + 1] = digest
            order[#order + 1] = text
        end
    end
    if attempt.claimant then return order end
    local time = now()
    attempt.claimant = taking.claimant
    attempt.worker = taking.worker
    attempt.claimed_at = time
    attempt.revision = tonumber(revision)
    attempt.lease = time + taking.ttl
    put_attempt(attempts, group, attempt)
    redis.call('XADD', keys.reports, '*', 'v', taking.schema_version, 'id', taking.event, 'token',
        offer .. '/' .. taking.claimant, 'kind', 'claimed', 'at', stamp(time))
    due_now(job, time)
    return order
end
