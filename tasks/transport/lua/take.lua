-- take: a runner claims the offer whose turn is next, on the first of its queues on which one may be taken.
--
-- keys: due reports turn answer polled pools pool_slots lanes
-- args: taking takes kept
--
-- taking: {queues: [], ready, runner, worker, claimant, ttl, event, schema_version, text_field, leaves,
--          bound, job, attempts, plans, inputs, versions} (JSON); the last five are keys of the job '\0'; ready: how the
--          key of a lane begins; bound: the versions of this runner, by name
-- leaves: if no offer stands, the runner takes none by itself any more.
-- takes: how many takes this caller began, this one included. kept: seconds for which the answer is kept.
-- Answers {CLAIMED, offer, plan, inputs, member, params, digest, text, …} | {EMPTY} | {MORE}
-- inputs: what the group reads, one entry for all members of a fork; member: the fork value, '{}' where there is none;
-- params: the job's; digest, text: of each reference in the plan to a text that is stored once; MORE: ask again
--
-- An offer that no longer stands is dropped, and the next one is tried. One for which other hosts are asked first stays,
-- and the next one is tried. A take that comes twice (its first reply was lost) gets the same answer, and so does nothing:
-- redis-py repeats a command on a new connection, while the first copy may still lie in the old one. A copy that is
-- older than the last take finds nothing.
local taking = cjson.decode(args.taking)

-- Has this pool a slot that no attempt holds? A pool that nobody has set has one slot.
local function has_slot(pool)
    local used = redis.call('ZLEXCOUNT', keys.pool_slots, '[' .. pool .. '/', '(' .. pool .. '0')  -- 0 comes after /
    return used < tonumber(redis.call('HGET', keys.pools, pool) or '1')
end

-- Are other hosts than this runner's asked first? A time further ahead was written before the clock was set back.
local function avoids(attempt)
    if not attempt.avoid or attempt.avoid ~= string.match(taking.worker, '^(.*):') then return false end
    local left = attempt.avoid_until - now()
    return left > 0 and left < 60
end

-- Claims one offer for `taking.claimant`. Returns the answer; nil if the offer does not stand, and then
-- the end of the lane of runners that have the versions of its job, if this one has not; then whether it stays
-- for other hosts.
local function claim_offer(offer)
    local job, group, epoch, nonce = string.match(offer, '^([^/]+)/([^/]+)/(%d+)/([%w_]+)$')
    if not job then return end
    local function key(name) return (string.gsub(taking[name], '%z', job)) end
    local record, attempts, inputs_key = key('job'), key('attempts'), key('inputs')
    local status, intent, halted, params, revision, mixed =
        unpack(redis.call('HMGET', record, 'status', 'intent', 'halted', 'params', 'revision', 'mixed'))
    if not status or terminal(status) then return end
    if not has_all_fields(record) then return due_now(job, now()) end  -- a coordinator halts it
    local attempt = open_attempt(attempts, group, epoch, nonce)
    if not attempt or (attempt.claimant and attempt.claimant ~= taking.claimant) then return end
    if not attempt.claimant and (intent ~= 'run' or (halted or '') ~= '') then return end
    if not attempt.claimant and avoids(attempt) then return nil, nil, true end
    local elsewhere = not attempt.claimant and other_versions(key('versions'), attempt, taking.bound, mixed)
    if elsewhere then return nil, elsewhere end
    if not attempt.claimant and attempt.pool and not has_slot(attempt.pool) then return end
    local planned = string.match(group, '^[^%[]+')
    local plan = redis.call('HGET', key('plans'), planned)
    local inputs = redis.call('HGET', inputs_key, planned)
    local member = redis.call('HGET', inputs_key, group)
    if not plan or not inputs or not member then return end
    local answer = {'CLAIMED', offer, plan, inputs, member, params}
    -- A reference in JSON (tasks/protocol/texts.py). One that a user's text only looks like finds nothing, and is nobody's.
    local given = {}
    for digest in string.gmatch(plan, '"\\u0000(%x+)"') do
        local text = not given[digest] and redis.call('HGET', record, taking.text_field .. digest)
        if text then
            given[digest] = true
            answer[#answer + 1] = digest
            answer[#answer + 1] = text
        end
    end
    if attempt.claimant then return answer end
    local time = now()
    attempt.claimant = taking.claimant
    attempt.worker = taking.worker
    attempt.claimed_at = time
    attempt.revision = tonumber(revision or '0')
    if not mixed then note_versions(key('versions'), attempt, taking.bound) end
    attempt.lease = time + taking.ttl
    put_attempt(attempts, group, attempt)
    if attempt.pool then redis.call('ZADD', keys.pool_slots, 0, attempt.pool .. '/' .. offer) end
    redis.call('XADD', keys.reports, '*', 'v', taking.schema_version, 'id', taking.event, 'token',
        offer .. '/' .. taking.claimant, 'kind', 'claimed', 'at', stamp(time))
    due_now(job, time)
    return answer
end

local last, claimant, offer = unpack(redis.call('HMGET', keys.answer, 'takes', 'claimant', 'offer'))
if claimant == taking.claimant and last == args.takes then
    return offer ~= '' and claim_offer(offer) or {'EMPTY'}
end
if tonumber(last or '0') > tonumber(args.takes) then return {'EMPTY'} end
local function keep(found)
    redis.call('HSET', keys.answer, 'takes', args.takes, 'claimant', taking.claimant, 'offer', found)
    redis.call('EXPIRE', keys.answer, args.kept)
end
redis.call('HSET', keys.polled, taking.runner, stamp(now()))
local dropped, ends, lane_end = 0, {[''] = true}, '#'
for _, name in ipairs({'python', 'spark'}) do
    if taking.bound[name] then
        lane_end = lane_end .. (lane_end == '#' and '' or ',') .. name .. taking.bound[name]
        ends[lane_end] = true
    end
end
if (taking.bound.spark or 'none') ~= 'none' then
    ends['#spark'] = true
    if taking.bound.python then ends['#python' .. taking.bound.python .. ',spark'] = true end
end
for _, queue in ipairs(taking.queues) do
    -- The first offers of the lanes from which this runner may take. stay: how many of the lane stay for other hosts.
    local heads, staying = {}, 0
    local function look(lane, index, stay)
        local head = redis.call('ZRANGE', taking.ready .. lane, stay, stay, 'WITHSCORES')
        if head[1] then
            table.insert(heads, index, {lane = lane, offer = head[1], turn = head[2], stay = stay})
        elseif stay == 0 then
            redis.call('ZREM', keys.lanes, lane)
        end
    end
    look(queue, 1, 0)
    local pooled = redis.call('ZRANGEBYLEX', keys.lanes, '[' .. queue .. '@', '(' .. queue .. 'A')  -- A comes after @
    for _, lane in ipairs(pooled) do
        local pool, lane_end = string.match(lane, '@([^#]*)(.*)$')
        if ends[lane_end] and (pool == '' or has_slot(pool)) then look(lane, #heads + 1, 0) end
    end
    while heads[1] and staying < 20 do
        local first = 1
        for index, head in ipairs(heads) do
            if tonumber(head.turn) < tonumber(heads[first].turn) then first = index end
        end
        local head = table.remove(heads, first)
        local answer, elsewhere, stays = claim_offer(head.offer)
        if not stays then redis.call('ZREM', taking.ready .. head.lane, head.offer) end
        if elsewhere then
            local lane = string.match(head.lane .. '@', '^[^@]*@[^@#]*') .. '#' .. elsewhere
            redis.call('ZADD', taking.ready .. lane, 'NX', head.turn, head.offer)
            redis.call('ZADD', keys.lanes, 0, lane)
        end
        if answer then
            if tonumber(head.turn) > tonumber(redis.call('HGET', keys.turn, queue) or '0') then
                redis.call('HSET', keys.turn, queue, head.turn)
            end
            keep(head.offer)
            return answer
        end
        look(head.lane, first, head.stay + (stays and 1 or 0))
        if stays then staying = staying + 1 else dropped = dropped + 1 end
        if dropped == 100 then
            keep('')
            return {'MORE'}
        end
    end
end
if taking.leaves then redis.call('HSET', keys.polled, taking.runner, stamp(-now())) end
keep('')
return {'EMPTY'}
