-- take: a runner claims the offer whose turn is next, on the first of its queues on which one stands.
--
-- keys: due reports turn answer awake
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
local dropped = 0
for _, queue in ipairs(taking.queues) do
    local head = redis.call('ZPOPMIN', queue.ready)
    while head[1] do
        local order = claim_offer(head[1], taking)
        if order then
            redis.call('HSET', keys.turn, queue.name, head[2])
            keep(head[1])
            return order
        end
        dropped = dropped + 1
        if dropped == 100 then
            keep('')
            return {'MORE'}
        end
        head = redis.call('ZPOPMIN', queue.ready)
    end
end
if taking.leaves then redis.call('HSET', keys.awake, taking.runner, stamp(-now())) end
keep('')
return {'EMPTY'}
