-- note_try: what became of the notices that were taken together: they were sent, are tried again, or are dead letters.
--
-- keys: notices notices_due notices_sent dead counters
-- args: target sender time notices outcome reply wait rest tried_for waiting kept dead_kept crowded_at window
--
-- notices: JSON, [[problem, id], …]. outcome: sent | failed | dead. wait: seconds until the notice is tried again; rest: until anything is for this target.
-- tried_for: seconds for which a notice is tried. kept, dead_kept: about how many that were sent, and dead letters, stay.
-- crowded_at: how many notices within ``window`` seconds make the target crowded: what comes then waits until they are
-- over, and is taken together. 0: it is never crowded.
-- Answers SENT | AGAIN | DEAD | LOST: another sender has taken it, or this is a repeat
local state, time = target_state(args.target), tonumber(args.time)
local queue = args.waiting .. args.target
local entries = {}  -- problem → its entry, of those that still wait
for _, notice in ipairs(cjson.decode(args.notices)) do
    local entry = redis.call('LINDEX', queue .. ':' .. notice[1], 0)
    if entry and string.match(entry, '^%S+ (%S+)') == notice[2] then entries[#entries + 1] = {notice[1], entry} end
end
if state.sender ~= args.sender or #entries == 0 then return 'LOST' end
state.sender, state.held_until = nil, nil
state.tries = state.tries or {}
local function tries_of(problem) return (state.tries[problem] or 0) + 1 end

local answer = 'SENT'

local function over(waiting_entry)
    return time - tonumber(string.match(waiting_entry, '^%S+')) >= tonumber(args.tried_for)
end

local function remove(problem)
    local key = queue .. ':' .. problem
    redis.call('LPOP', key)
    state.tries[problem] = nil
    if redis.call('EXISTS', key) == 1 then
        redis.call('ZADD', queue, time, problem)
    else
        redis.call('ZREM', queue, problem)
    end
end

local function make_dead(problem, waiting_entry, count)
    local text = string.match(waiting_entry, '^%S+ %S+ (.*)$')
    redis.call('XADD', keys.dead, 'MAXLEN', '~', args.dead_kept, '*', 'reason', args.reply, 'to', args.target,
        'deliveries', count, 'notice', text)
    redis.call('HINCRBY', keys.counters, 'NOTICE_DEAD', 1)
    remove(problem)
end

local function count_sent()
    local crowded_at, window = tonumber(args.crowded_at), tonumber(args.window)
    if crowded_at == 0 then return end
    if not state.window or time < state.window or time >= state.window + window then
        state.window, state.sent = math.floor(time), 0  -- JSON would round a fraction, perhaps up
    end
    state.sent = state.sent + #entries
    state.crowded = nil
    if state.sent >= crowded_at or #entries > 1 then
        state.crowded, state.next, state.window = true, time + window, nil
    end
end

if args.outcome == 'sent' then
    state.failed, state.since, state.next, state.reply = nil, nil, nil, nil
    for _, taken in ipairs(entries) do
        local problem, entry = taken[1], taken[2]
        redis.call('XADD', keys.notices_sent, 'MAXLEN', '~', args.kept, '*', 'to', args.target, 'at', args.time,
            'tries', tries_of(problem), 'reply', args.reply, 'notice', string.match(entry, '^%S+ %S+ (.*)$'))
        redis.call('HINCRBY', keys.counters, 'NOTICE_SENT', 1)
        remove(problem)
    end
    count_sent()
elseif args.outcome == 'dead' then
    answer = 'DEAD'
    for _, taken in ipairs(entries) do make_dead(taken[1], taken[2], tries_of(taken[1])) end
else
    answer = 'AGAIN'
    state.failed, state.since = (state.failed or 0) + 1, state.since or time
    state.next, state.reply = time + tonumber(args.rest), args.reply
    for _, taken in ipairs(entries) do
        local problem, entry = taken[1], taken[2]
        state.tries[problem] = tries_of(problem)
        redis.call('ZADD', queue, time + tonumber(args.wait), problem)
        if over(entry) then
            answer = 'DEAD'
            make_dead(problem, entry, state.tries[problem])
        end
    end
    -- A target that has taken nothing for so long would otherwise hold a letter for each try to come.
    if time - state.since >= tonumber(args.tried_for) then
        for _, problem in ipairs(redis.call('ZRANGE', queue, 0, 99)) do
            local oldest = redis.call('LINDEX', queue .. ':' .. problem, 0)
            if oldest and over(oldest) then make_dead(problem, oldest, state.tries[problem] or 0) end
        end
    end
end
put_target_state(args.waiting, args.target, state)
return answer
