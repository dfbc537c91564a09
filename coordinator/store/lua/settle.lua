-- settle: a decision that changed nothing still acks its reports, counts them and sets the job due.
--
-- KEYS  1 due  2 reports  3 counters  4 events  5 job
-- ARGV  1 job id  2 {due, due_seen, acks: [], counts: {}, refused: {}} (JSON)  3 consumer group
--       4 bound of the event stream
-- Answers OK
local change = cjson.decode(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
for _, id in ipairs(change.acks) do
    local acked = redis.call('XACK', KEYS[2], ARGV[3], id)
    -- An outcome that was refused is one event, however often its entry is delivered or this script repeated.
    -- NOMKSTREAM: a log that has expired does not come back, for ever.
    if acked == 1 and change.refused[id] then
        redis.call('XADD', KEYS[4], 'NOMKSTREAM', 'MAXLEN', '~', ARGV[4], '*', 'event', change.refused[id])
    end
end
for name, count in pairs(change.counts) do redis.call('HINCRBY', KEYS[3], name, count) end
if change.due == cjson.null then
    -- It had ended when it was read; a store that was rolled back since may hold a job that goes on.
    local terminal = {FINISHED = true, FAILED = true, CANCELED = true, STOPPED = true}
    local status = redis.call('HGET', KEYS[5], 'status')
    if not status or terminal[status] then redis.call('ZREM', KEYS[1], ARGV[1]) end
elseif redis.call('ZSCORE', KEYS[1], ARGV[1]) == change.due_seen and now < tonumber(change.due_seen) then
    -- As in commit: a pass that outlived its term moves the due earlier only.
    redis.call('ZADD', KEYS[1], 'XX', change.due, ARGV[1])
else
    redis.call('ZADD', KEYS[1], 'XX', 'LT', change.due, ARGV[1])
end
return 'OK'
