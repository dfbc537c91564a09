-- renew: the watchdog keeps its runner's lease and hears what it should do.
--
-- KEYS  1 job  2 attempts
-- ARGV  1 group  2 epoch  3 nonce  4 claimant  5 worker  6 lease ttl (s)  7 progress (JSON text)
-- Answers CONTINUE | CANCEL | DRAIN | STALE
--
-- An attempt that is current but unclaimed was rolled back with its store: it is claimed again.
local status = redis.call('HGET', KEYS[1], 'status')
local terminal = {FINISHED = true, FAILED = true, CANCELED = true, STOPPED = true}
if not status or terminal[status] then return 'STALE' end
local raw = redis.call('HGET', KEYS[2], ARGV[1])
if not raw then return 'STALE' end
local attempt = cjson.decode(raw)
if attempt.epoch ~= tonumber(ARGV[2]) or attempt.nonce ~= ARGV[3] or attempt.outcome then return 'STALE' end
if attempt.claimant and attempt.claimant ~= ARGV[4] then return 'STALE' end

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
if not attempt.claimant then
    attempt.claimant = ARGV[4]
    attempt.worker = ARGV[5]
    attempt.claimed_at = now
end
attempt.lease = now + tonumber(ARGV[6])
if ARGV[7] ~= '' then attempt.progress = ARGV[7] end
redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(attempt))
return attempt.order or 'CONTINUE'
