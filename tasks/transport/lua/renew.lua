-- renew: the watchdog keeps its runner's lease and hears what it should do.
--
-- keys: job attempts plans pool_slots due versions
-- args: job group epoch nonce claimant worker ttl progress bound
--
-- ttl: of the lease, in seconds. progress: JSON, or empty. bound: the versions of the runner, by name (JSON).
-- Answers {CONTINUE | CANCEL | DRAIN, plan} | {STALE}
-- plan: of the group, if the job was altered since the attempt was claimed; its timeouts count for the attempt too.
--
-- An attempt that is current but unclaimed was rolled back with its store: it is claimed again, and its job is due. It is
-- stale if runners of other versions have begun the job meanwhile.
local status, mixed, revision = unpack(redis.call('HMGET', keys.job, 'status', 'mixed', 'revision'))
if not status or terminal(status) then return {'STALE'} end
local attempt = open_attempt(keys.attempts, args.group, args.epoch, args.nonce)
if not attempt or (attempt.claimant and attempt.claimant ~= args.claimant) then return {'STALE'} end

local time = now()
if not attempt.claimant then
    local bound = cjson.decode(args.bound)
    if other_versions(keys.versions, attempt, bound, mixed) then return {'STALE'} end
    if not mixed then note_versions(keys.versions, attempt, bound) end
    attempt.claimant = args.claimant
    attempt.worker = args.worker
    attempt.claimed_at = time
    due_now(args.job, time)
    if attempt.pool then
        local offer = table.concat({args.job, args.group, args.epoch, args.nonce}, '/')
        redis.call('ZADD', keys.pool_slots, 0, attempt.pool .. '/' .. offer)
    end
end
attempt.lease = time + tonumber(args.ttl)
if args.progress ~= '' then attempt.progress = args.progress end
put_attempt(keys.attempts, args.group, attempt)
local altered = (attempt.revision or 0) < tonumber(revision or '0')
return {attempt.instruction or 'CONTINUE', altered and redis.call('HGET', keys.plans, string.match(args.group, '^[^%[]+')) or nil}
