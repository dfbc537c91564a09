-- take: a runner claims the offer whose turn is next, on the first of its queues on which one may be taken.
--
-- keys: due reports turn answer awake pools held
-- args: taking serial kept
--
-- taking: as in `claim_offer` (prelude). leaves: if no offer stands, the runner takes none by itself any more.
-- serial: how many takes this caller began, this one included. kept: seconds for which the answer is kept.
-- Answers {CLAIMED, offer, plan, inputs, member, params, digest, text, …} | {EMPTY} | {MORE}
-- inputs: what the group reads, one entry for all members of a fork; member: the fork value, '{}' where there is none;
-- params: the job's; digest, text: of each reference in the plan to a text that is stored once; MORE: ask again
--
-- An offer that no longer stands is dropped, and the next one is tried. A take that comes twice (its first reply was
-- lost) gets the same order, and so does nothing: redis-py repeats a command on a new connection, while the first copy
-- may still lie in the old one. A copy that is older than the last take finds nothing.
local taking = cjson.decode(args.taking)
local last, claimant, offer = unpack(redis.call('HMGET', keys.answer, 'serial', 'claimant', 'offer'))
if claimant == taking.claimant and last == args.serial then
    return offer ~= '' and claim_offer(offer, taking) or {'EMPTY'}
end
if tonumber(last or '0') > tonumber(args.serial) then return {'EMPTY'} end

local function keep(found)
    redis.call('HSET', keys.answer, 'serial', args.serial, 'claimant', taking.claimant, 'offer', found)
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
