-- note_try: what became of a notice that was taken: it was sent, it is tried again, or it is a dead letter.
--
-- keys: notices notices_due notices_sent dead counters
-- args: target sender time problem id outcome said wait rest tried_for waiting kept dead_kept
--
-- outcome: sent | failed | dead. wait: seconds until the notice is tried again; rest: until anything is for this target.
-- tried_for: seconds for which a notice is tried. kept, dead_kept: about how many that were sent, and dead letters, stay.
-- Answers SENT | AGAIN | DEAD | LOST: another sender has taken it, or this is a repeat
local state, time = target_state(args.target), tonumber(args.time)
local queue = args.waiting .. args.target
local entry = redis.call('LINDEX', queue .. ':' .. args.problem, 0)
if state.sender ~= args.sender or not entry or string.match(entry, '^%S+ (%S+)') ~= args.id then return 'LOST' end
state.sender, state.held_until = nil, nil
state.tries = state.tries or {}
local tries = (state.tries[args.problem] or 0) + 1
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
    redis.call('XADD', keys.dead, 'MAXLEN', '~', args.dead_kept, '*', 'reason', args.said, 'to', args.target,
        'deliveries', count, 'notice', text)
    redis.call('HINCRBY', keys.counters, 'NOTICE_DEAD', 1)
    remove(problem)
end

if args.outcome == 'sent' then
    redis.call('XADD', keys.notices_sent, 'MAXLEN', '~', args.kept, '*', 'to', args.target, 'at', args.time,
        'tries', tries, 'said', args.said, 'notice', string.match(entry, '^%S+ %S+ (.*)$'))
    redis.call('HINCRBY', keys.counters, 'NOTICE_SENT', 1)
    state.failed, state.since, state.next, state.said = nil, nil, nil, nil
    remove(args.problem)
elseif args.outcome == 'dead' then
    answer = 'DEAD'
    make_dead(args.problem, entry, tries)
else
    answer = 'AGAIN'
    state.failed, state.since = (state.failed or 0) + 1, state.since or time
    state.next, state.said = time + tonumber(args.rest), args.said
    state.tries[args.problem] = tries
    redis.call('ZADD', queue, time + tonumber(args.wait), args.problem)
    if over(entry) then
        answer = 'DEAD'
        make_dead(args.problem, entry, tries)
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
