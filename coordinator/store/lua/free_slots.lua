-- free_slots: take the slots of their pools from attempts that have ended, or whose runner is lost.
--
-- keys: pool_slots
-- args: start count job_key attempts_key
--
-- start, count: which members of `pool_slots` are looked at. job_key, attempts_key: keys of the job '\0'.
-- Answers {how many were looked at, how many slots became free}
local members = redis.call('ZRANGE', keys.pool_slots, args.start, args.start + args.count - 1)
local free = 0
for _, member in ipairs(members) do
    local job, group, epoch, nonce = string.match(member, '^[^/]*/([^/]+)/([^/]+)/(%d+)/([%w_]+)$')
    local function holds()
        local status = redis.call('HGET', (string.gsub(args.job_key, '%z', job)), 'status')
        if not status or terminal(status) then return false end
        local attempt = open_attempt((string.gsub(args.attempts_key, '%z', job)), group, epoch, nonce)
        return attempt and attempt.claimant
    end
    -- What cannot be read concerns its own job alone: it holds no slot.
    local readable, holding = pcall(holds)
    if not job or not readable or not holding then
        redis.call('ZREM', keys.pool_slots, member)
        free = free + 1
    end
end
return {#members, free}
