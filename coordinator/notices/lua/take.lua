-- take: the notice for a target that is to be sent next, for one sender of the whole fleet at a time.
--
-- keys: notices notices_due
-- args: target sender time hold waiting
--
-- hold: seconds for which no other sender takes anything for the target.
-- Answers {problem, how often it failed, how often the target failed in a row, the entry} | {}: nothing is to be sent now
local state, time = target_state(args.target), tonumber(args.time)
-- A time further ahead than any wait (spread.lua) was noted before the clock was set back.
local function lies_ahead(at) return at > time and at <= time + 1000 end
local held = state.sender and state.sender ~= args.sender and lies_ahead(state.held_until)
local queue = args.waiting .. args.target
local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
if held or lies_ahead(state.next or 0) or not first[1] or lies_ahead(tonumber(first[2])) then
    set_notices_due(args.waiting, args.target, state)
    return {}
end
local entry = redis.call('LINDEX', queue .. ':' .. first[1], 0)
if not entry then  -- the list was lost
    redis.call('ZREM', queue, first[1])
    return {}
end
state.sender, state.held_until = args.sender, time + tonumber(args.hold)
put_target_state(args.waiting, args.target, state)
return {first[1], (state.tries or {})[first[1]] or 0, state.failed or 0, entry}
