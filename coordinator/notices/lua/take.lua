-- take: the notices for a target that are to be sent next, for one sender of the whole fleet at a time: one, or the first
-- of each problem together while the target is crowded (note_try.lua).
--
-- keys: notices notices_due
-- args: target sender time hold waiting most
--
-- hold: seconds for which no other sender takes anything for the target. most: notices that are taken together.
-- Answers {how often the target failed in a row, problem, how often it failed, the entry, …} | {}: nothing is to be sent now
local state, time = target_state(args.target), tonumber(args.time)
-- A time further ahead than any wait (spread.lua) was noted before the clock was set back.
local function lies_ahead(at) return at > time and at <= time + 1000 end
local held = state.sender and state.sender ~= args.sender and lies_ahead(state.held_until)
local queue = args.waiting .. args.target
local most = state.crowded and tonumber(args.most) or 1
local heads = redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES')
if held or lies_ahead(state.next or 0) or not heads[1] or lies_ahead(tonumber(heads[2])) then
    set_notices_due(args.waiting, args.target, state)
    return {}
end
local taken = {state.failed or 0}
for i = 1, #heads, 2 do
    local problem, entry = heads[i], redis.call('LINDEX', queue .. ':' .. heads[i], 0)
    if not entry then  -- the list was lost
        redis.call('ZREM', queue, problem)
    elseif not lies_ahead(tonumber(heads[i + 1])) then
        taken[#taken + 1] = problem
        taken[#taken + 1] = (state.tries or {})[problem] or 0
        taken[#taken + 1] = entry
    end
end
if #taken == 1 then return {} end
state.sender, state.held_until = args.sender, time + tonumber(args.hold)
put_target_state(args.waiting, args.target, state)
return taken
