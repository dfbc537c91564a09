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

-- In as few calls as Lua has room for.
local function call_with(command, key, list)
    for at = 1, #list, 1000 do redis.call(command, key, unpack(list, at, math.min(at + 999, #list))) end
end

-- A field that is empty is not stored.
local function set_all(key, map)
    local set, empty = {}, {}
    for field, value in pairs(map) do
        if value == '' then
            empty[#empty + 1] = field
        else
            set[#set + 1] = field
            set[#set + 1] = value
        end
    end
    call_with('HSET', key, set)
    call_with('HDEL', key, empty)
end

-- Writes fields of the job's record, and keeps in `fields` which ones it has: their number and their names. A field that
-- is lost stays named there. A record that has lost `fields` itself gets none again.
local function write_record(map)
    set_all(keys.job, map)
    local number, names = string.match(redis.call('HGET', keys.job, 'fields') or '', '^(%d+)(.*)$')
    if not number then return end
    local before = names
    for field, value in pairs(map) do
        local from, to = string.find(names, ' ' .. field .. ' ', 1, true)
        if value == '' and from then
            number, names = number - 1, string.sub(names, 1, from) .. string.sub(names, to + 1)
        elseif value ~= '' and not from then
            number, names = number + 1, names .. field .. ' '
        end
    end
    if names ~= before then redis.call('HSET', keys.job, 'fields', string.format('%d%s', number, names)) end
end

-- Has the record at `job` all fields that were written?
local function has_all_fields(job)
    local number = string.match(redis.call('HGET', job, 'fields') or '', '^%d+')
    return number and redis.call('HLEN', job) > tonumber(number)  -- `fields` is one more
end

-- The attempt of `group` that has this epoch and nonce and no outcome yet; else nil. `attempts`: the key of all.
local function open_attempt(attempts, group, epoch, nonce)
    local raw = redis.call('HGET', attempts, group)
    local attempt = raw and cjson.decode(raw)
    if attempt and attempt.epoch == tonumber(epoch) and attempt.nonce == nonce and not attempt.outcome then
        return attempt
    end
end

local function put_attempt(attempts, group, attempt) redis.call('HSET', attempts, group, cjson.encode(attempt)) end

-- A job keeps to the versions of its first claim, in the hash `versions`, unless it is `mixed`. Those that a runner with
-- the versions `bound` lacks for `attempt`, as a lane ends; else nil. `spark` alone is any Spark, which a runner lacks
-- whose version is 'none'.
local function other_versions(versions, attempt, bound, mixed)
    local wanted, differs = {}, false
    for _, name in ipairs({'python', 'spark'}) do
        local version = (name == 'python' or attempt.spark) and not mixed and redis.call('HGET', versions, name)
        if name == 'spark' and attempt.spark and bound.spark == 'none' then version = version or '' end
        if version then wanted[#wanted + 1] = name .. version end
        differs = differs or (version and bound[name] and bound[name] ~= version)
    end
    return differs and table.concat(wanted, ',') or nil
end

-- Notes the versions `bound` of who claims `attempt`, where it is the first.
local function note_versions(versions, attempt, bound)
    for name, version in pairs(bound) do
        if name == 'python' or attempt.spark then redis.call('HSETNX', versions, name, version) end
    end
end

-- A worker has written something: its job is due now, unless the job has ended.
local function due_now(job, time) redis.call('ZADD', keys.due, 'XX', 'LT', stamp(time), job) end

-- Adds a time to the JSON text of an object with fields. The text is not decoded: cjson keeps 14 digits of a number, and
-- writes an empty list as {}.
local function at_time(object, time) return '{"at":' .. stamp(time) .. ',' .. string.sub(object, 2) end

-- Appends to the event log of a job that goes on.
local function log_event(event) redis.call('XADD', keys.events, 'MAXLEN', '~', 20000, '*', 'event', event) end

-- Appends to the event log if there is one: the log of a job that is forgotten does not come back for ever.
local function log_late_event(event)
    redis.call('XADD', keys.events, 'NOMKSTREAM', 'MAXLEN', '~', 20000, '*', 'event', event)
end

-- Puts a notice (JSON) into the outbox: a change of which somebody is told is not committed without it. The sender drops
-- what is sent.
local function tell(notice) redis.call('XADD', keys.outbox, '*', 'notice', notice) end

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

-- How a target of notices stands: who sends to it until when, how often it failed in a row, since when and why, when it
-- may be tried next, and per problem how often its first notice failed.
local function target_state(target)
    local readable, state = pcall(cjson.decode, redis.call('HGET', keys.notices, target) or '{}')
    return readable and type(state) == 'table' and state or {}
end

-- Notes when a target of notices is tried next, if any wait for it. `waiting`: what the keys of the queues begin with.
local function set_notices_due(waiting, target, state)
    local first = redis.call('ZRANGE', waiting .. target, 0, 0, 'WITHSCORES')
    if not first[1] then
        redis.call('ZREM', keys.notices_due, target)
        return
    end
    local due = math.max(tonumber(first[2]), state.next or 0, state.held_until or 0)
    redis.call('ZADD', keys.notices_due, stamp(due), target)
end

-- Keeps how a target stands; nothing is kept of one that is well and has nothing to send.
local function put_target_state(waiting, target, state)
    if state.tries and not next(state.tries) then state.tries = nil end
    if next(state) then
        redis.call('HSET', keys.notices, target, cjson.encode(state))
    else
        redis.call('HDEL', keys.notices, target)
    end
    set_notices_due(waiting, target, state)
end

-- Lets a notice wait for its target, behind those of its problem that wait. One that waits there already does not twice.
local function add_notice(waiting, target, problem, id, text, time)
    local list, waits = waiting .. target .. ':' .. problem, false
    for _, entry in ipairs(redis.call('LRANGE', list, 0, -1)) do
        waits = waits or string.match(entry, '^%S+ (%S+)') == id
    end
    if not waits then redis.call('RPUSH', list, time .. ' ' .. id .. ' ' .. text) end
    redis.call('ZADD', waiting .. target, 'NX', time, problem)
    set_notices_due(waiting, target, target_state(target))
end
