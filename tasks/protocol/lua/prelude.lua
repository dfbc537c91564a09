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

-- A field that is empty is not stored.
local function set_all(key, map)
    for field, value in pairs(map) do
        if value == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, value) end
    end
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

-- Adds offers to their lanes, and rings for awake runners. An offer that stands already keeps its turn. The offers of a
-- job in a lane have one turn each, counted from the turn that is next on that queue: jobs take turns, and a later job
-- need not wait for all offers of a wide one. The turns of a job lie as far apart as its priority says.
--
-- change: {offers: [[lane, offer]], lanes: {lane: {queue, pool, ready, bell}}}; pool may be ''
local function add_offers(change)
    local added, last = {}, {}
    local step = ({high = 1, low = 16})[redis.call('HGET', keys.job, 'priority')] or 4
    for _, one in ipairs(change.offers) do
        local lane, offer = one[1], one[2]
        local place = change.lanes[lane]
        local queue = place.queue
        if not last[lane] then
            -- Not from the head of a pool's lane: it may have waited long for a slot, and its turn be long past.
            local turn = place.pool == '' and redis.call('ZRANGE', place.ready, 0, 0, 'WITHSCORES')[2]
            turn = turn or redis.call('HGET', keys.turn, queue) or '0'
            last[lane] = math.max(tonumber(turn), tonumber(redis.call('HGET', keys.turns, lane) or '0'))
        end
        if redis.call('ZADD', place.ready, 'NX', last[lane] + step, offer) == 1 then
            last[lane] = last[lane] + step
            added[lane] = (added[lane] or 0) + 1
        end
        redis.call('SADD', keys.lanes, lane)
        if place.pool ~= '' then redis.call('HSETNX', keys.pools, place.pool, '1') end
    end
    for lane, count in pairs(added) do
        local place = change.lanes[lane]
        redis.call('HSET', keys.turns, lane, last[lane])
        -- An entry that nobody waits for is gone in a moment: whoever takes it for nothing looks once in vain.
        for _ = redis.call('LLEN', place.bell) + 1, math.min(count, 16) do redis.call('LPUSH', place.bell, '') end
        redis.call('PEXPIRE', place.bell, 100)
    end
end

-- Has this pool a slot that no attempt holds? A pool that nobody has set has one slot.
local function has_slot(pool)
    local held = redis.call('ZLEXCOUNT', keys.held, '[' .. pool .. '/', '(' .. pool .. '0')  -- 0 comes after /
    return held < tonumber(redis.call('HGET', keys.pools, pool) or '1')
end

-- Claims one offer for `taking.claimant`. Returns the order, as `take` answers it; nil if the offer does not stand.
--
-- taking: {queues: [], ready, runner, worker, claimant, ttl, event, schema_version, text_field, leaves,
--          job, attempts, plans, inputs}; the last four are keys of the job '\0'; ready: how the key of a lane begins
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
    if not attempt.claimant and attempt.pool and not has_slot(attempt.pool) then return end
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
    attempt.revision = tonumber(revision or '0')
    attempt.lease = time + taking.ttl
    put_attempt(attempts, group, attempt)
    if attempt.pool then redis.call('ZADD', keys.held, 0, attempt.pool .. '/' .. offer) end
    redis.call('XADD', keys.reports, '*', 'v', taking.schema_version, 'id', taking.event, 'token',
        offer .. '/' .. taking.claimant, 'kind', 'claimed', 'at', stamp(time))
    due_now(job, time)
    return order
end

-- Claims the offer whose turn is next. Returns what `take` answers.
--
-- An offer that no longer stands is dropped, and the next one is tried. A take that comes twice (its first reply was
-- lost) gets the same order, and so does nothing: redis-py repeats a command on a new connection, while the first copy
-- may still lie in the old one. A copy that is older than the last take finds nothing.
local function take_next(taking)
    local last, claimant, offer = unpack(redis.call('HMGET', keys.answer, 'takes', 'claimant', 'offer'))
    if claimant == taking.claimant and last == args.takes then
        return offer ~= '' and claim_offer(offer, taking) or {'EMPTY'}
    end
    if tonumber(last or '0') > tonumber(args.takes) then return {'EMPTY'} end
    local function keep(found)
        redis.call('HSET', keys.answer, 'takes', args.takes, 'claimant', taking.claimant, 'offer', found)
        redis.call('EXPIRE', keys.answer, args.kept)
    end
    redis.call('HSET', keys.awake, taking.runner, stamp(now()))
    local pools = redis.call('HKEYS', keys.pools)
    local dropped = 0
    for _, queue in ipairs(taking.queues) do
        while true do
            -- The offer whose turn is next, in the lanes of this queue whose pools have a slot.
            local offer, turn, from
            local function look(ready, pool)
                local head = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
                if not head[1] or (turn and tonumber(head[2]) >= tonumber(turn)) then return end
                if pool and not has_slot(pool) then return end
                offer, turn, from = head[1], head[2], ready
            end
            look(taking.ready .. queue)
            for _, pool in ipairs(pools) do look(taking.ready .. queue .. '@' .. pool, pool) end
            if not offer then break end
            redis.call('ZREM', from, offer)
            local order = claim_offer(offer, taking)
            if order then
                if tonumber(turn) > tonumber(redis.call('HGET', keys.turn, queue) or '0') then
                    redis.call('HSET', keys.turn, queue, turn)
                end
                keep(offer)
                return order
            end
            dropped = dropped + 1
            if dropped == 100 then
                keep('')
                return {'MORE'}
            end
        end
    end
    if taking.leaves then redis.call('HSET', keys.awake, taking.runner, stamp(-now())) end
    keep('')
    return {'EMPTY'}
end

-- Puts the outcome onto the attempt record, the report onto the stream and makes the job due. Returns what `finish`
-- answers.
--
-- A job that is not in the store is reported all the same: a coordinator makes it a dead letter. So is an outcome that
-- is refused, with the word "refused", for the job's event log.
--
-- The answer is kept longer than any caller repeats: a repeat after a refusal adds no second report, and a repeat after
-- a success is a DUPLICATE even if the coordinator has applied the outcome.
local function finish_attempt()
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
    if not attempt and has_outcome(args.group, args.epoch, args.nonce, args.claimant, args.outcome) then
        return keep('DUPLICATE')
    end
    if not attempt or attempt.claimant ~= args.claimant then return answer('STALE', 'refused', 'STALE') end
    attempt.outcome = args.outcome
    attempt.outcome_at = time
    put_attempt(keys.attempts, args.group, attempt)
    if attempt.pool then
        local offer = table.concat({args.job, args.group, args.epoch, args.nonce}, '/')
        redis.call('ZREM', keys.held, attempt.pool .. '/' .. offer)
    end
    due_now(args.job, time)
    return answer('APPLIED')
end
