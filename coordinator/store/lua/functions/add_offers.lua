-- add_offers: offers into their lanes, and a notice for polling runners; `commit` and `acknowledge_reports` call it.
--
-- keys: job turn turns lanes
-- Called with {offers: [[lane, offer]], lanes: {lane: {queue, pool, ready, notify}}}; pool may be ''
--
-- An offer that stands already keeps its turn. The offers of a job in a lane have one turn each, counted from the turn
-- that is next on that queue: jobs take turns, and a later job need not wait for all offers of a wide one. The turns of
-- a job lie as far apart as its priority says.
local change = ...
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
    redis.call('ZADD', keys.lanes, 0, lane)
end
for lane, count in pairs(added) do
    local place = change.lanes[lane]
    redis.call('HSET', keys.turns, lane, last[lane])
    -- An entry that no runner waits for is gone in a moment: a runner that takes it looks once in vain.
    for _ = redis.call('LLEN', place.notify) + 1, math.min(count, 16) do redis.call('LPUSH', place.notify, '') end
    redis.call('PEXPIRE', place.notify, 100)
end
